"""Kafka: several monitors share a topic of log lines as a consumer group; any of them may stop at any moment.

Each partition has its own core (monitor/core), run by the member that owns the partition. The state of a core, its
notifications and its offset are one record in a compacted topic. Rules: a notification is sent after the record that
holds it is written; a member that lost a partition can no longer write its record, because the new owner fences it (the
transaction id belongs to the partition); the saved state counts each record of the topic once.

    records.py   a record to streams of dated lines: pure
    shard.py     a partition: its records become messages of its core, like those of the follower
    state.py     the record of a partition's state: found, written, fenced
    member.py    the group: which member has which partition, and what people should know
"""
