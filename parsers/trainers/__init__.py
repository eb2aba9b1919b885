"""One file a trainer: how its lines are read."""
