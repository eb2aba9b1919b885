"""The receiver: a process of its own that takes logs which agents push over the network.

What comes in: Loki's push and OTLP/HTTP logs. What goes out: a file for each stream, of dated lines (spool.py), and a
report of the agents (agents.py). Laws: an answer of success only when the lines are on the disk; no answer of 500;
what a sender should try again is 429 or 503, 400 only a body that can never be read.

    wire.py, messages.py   bytes to streams of dated lines: pure
    labels.py              labels to the run, the agent and the file: pure
    spool.py               lines to the disk, each once
    agents.py              when each agent was last heard from
    server.py              HTTP, tenants and their quotas; the process
    extension.py           the side of the observer: it follows the files, and states what it has read
"""
