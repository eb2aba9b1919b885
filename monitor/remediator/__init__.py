"""`megatron-monitor remediate`: a process that asks the observer for advice and acts on Slurm jobs.

The process has its own user and state directory. It does nothing until configured, and dry runs until `dry_run: false`.

    remediator   the loop: poll, decide, save, do one step, save
    plan         turns incident, remediation, job and record into steps, or into a reason for doing nothing (pure)
    permission   decides whether the job may be touched (pure)
    commands     runs Slurm's clients: checks before the steps, each step, and whether the new job begins
    successors   finds queued jobs that continue the training by themselves (pure)

Rule: no text of a log becomes an argument. A job id consists of digits, node names come from the job's own node list,
everything else comes from the configuration or from Slurm.
"""
