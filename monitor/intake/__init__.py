"""Intake: logs that agents push over the network, to files that the follower reads as any other.

What comes in: Loki's push and OTLP/HTTP logs on a port of their own. What goes out: dated lines in a file a stream
(spool.py), and which agents were heard when (carriers.py). Laws: an answer of success only when the lines are on the
disk; no answer of 500; what a sender should try again is 429 or 503, 400 only a body that nobody can ever read.

    wire.py, messages.py   bytes to streams of dated lines: pure
    labels.py              labels to the run, the agent and the file: pure
    spool.py               lines to the disk, each once
    carriers.py            when each agent was heard
    door.py                HTTP, tenants and their shares
"""
