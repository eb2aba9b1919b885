"""The nodes of a cluster: their names, and what is known of each of them over all runs. Pure."""
