"""Where an iteration's time goes, by the log's own timers, and why iterations have become slower. Pure.

`account` gathers the timers of each iteration line, `profile` takes medians of several lines, `attribution` compares
two profiles and names the cause of the difference, `words` says it.
"""
