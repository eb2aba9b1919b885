"""The receiver: a separate process that accepts logs which agents push over the network.

Input: Loki's push and OTLP/HTTP logs. Output: a file of dated lines for each stream (spool.py) and a report about the
agents (agents.py). Rules: success is only answered when the lines are on disk; 500 is never answered, because senders
drop the lines then; 429 and 503 mean try again; 400 means that the body can never be read.

    wire.py, messages.py   bytes to streams of dated lines: pure
    labels.py              labels to run, agent and file: pure
    spool.py               lines to the disk, each once
    agents.py              when each agent was last seen
    server.py              HTTP, tenants and their quotas; the process
    extension.py           in the daemon: follows the files and reports how far they are read
"""
