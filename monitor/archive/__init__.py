"""Archives: many finished logs to rows, some files at a time, by several processes or a Ray cluster.

Files that may be of one run or one job are read together: those whose runs have one name, or that are one file under
two names. What a log prints of its job is only known once it was read: tasks that turn out to share a job are read once
more, as one. So the rows are those of a single reading, however many processes read, and each holds one task's runs.
"""
