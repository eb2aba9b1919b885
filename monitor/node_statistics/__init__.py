"""Which nodes fail more often, or run slower, than their peers: statistics over the attempts of all runs."""
