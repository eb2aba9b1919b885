"""`megatron-monitor remediate`: a process that asks the observer for advice and acts on Slurm jobs.

It has its own user and its own state directory. All is off until configured, and a dry run until that is switched off.

    remediator   the loop: poll, decide, save, do one step, save
    plan         an incident, a remediation, the job and the record to steps, or to a reason why nothing is done (pure)
    permission   may the job be touched? (pure)
    commands     Slurm's clients: what could refuse the steps, one step, does the new job begin?
    successors   jobs in the queue that continue the training by themselves (pure)

Rule: nothing of a log becomes an argument. A job's id is digits, nodes are names of the job's own node list, everything
else is of the configuration or of Slurm.
"""
