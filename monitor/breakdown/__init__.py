"""Where an iteration's time goes, by the log's own timers, and why iterations became slower. Pure.

`account` collects the timers of each iteration line. `profile` computes medians of several lines. `attribution`
compares two profiles and names the cause of the difference. `messages` formats it.
"""
