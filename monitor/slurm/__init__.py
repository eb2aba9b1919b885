"""What Slurm says of a job, asked on a thread of its own: never more than one call a job an interval, none that hangs.

`settings` holds the keys of the configuration, `ids` finds the id of a run's job, `replies` reads what scontrol and
sacct print, `process` runs a program without a shell, `client` takes questions and gives answers.
"""
