"""Remediation: what is done about an incident. All off until configured, and a dry run until that is switched off.

monitor/config/remediations.py has the keys, `record` what was planned and done, `plan` decides (pure), `executor` runs
one command after the other on a thread of its own. Law: nothing of a log becomes an argument. A job's id is digits,
nodes are names of the job's own node list, everything else is of the configuration or of Slurm.
"""
