"""The state of one run and its fold: pure, time is an argument."""
