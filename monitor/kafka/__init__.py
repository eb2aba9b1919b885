"""Kafka: a topic of log lines that several monitors share, and that any of them may leave at any moment.

A consumer group; each partition is a core of its own (monitor/core), on which the member that has it works as on the
logs that it follows. What a core knows, what it owes to receivers and how far it has read are one record of a compacted
topic. Laws: nothing is sent before the record that owes it is written; a member that has lost a partition can write
none any more (a transaction's id is the partition's: who begins anew fences who was before); the same record is handled
once in what is saved.

    records.py   a record to streams of dated lines: pure
    shard.py     a partition: its records to messages of its core, as the follower's are
    state.py     the record of a partition's state: found, written, fenced
    member.py    the group: which partitions are ours, who has the others, what is in the way
"""
