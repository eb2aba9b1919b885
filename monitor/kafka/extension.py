"""A Kafka topic beside the daemon's files: each partition that is ours is a core of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from megatron_monitor.extensions import Service
from megatron_monitor.services import StartError
from megatron_monitor.snapshot import MonitorCounts, Snapshot

if TYPE_CHECKING:
    from megatron_monitor.config import Config
    from megatron_monitor.core import Core
    from megatron_monitor.daemon import Daemon
    from megatron_monitor.kafka.member import Member


class Topic(Service):
    """A member of the group that shares the topic, from `start` to `close`."""

    fixed = ("kafka",)
    waits = True

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon
        self._member: Member | None = None

    def start(self) -> None:
        """Join the group. Raises StartError."""
        daemon = self._daemon
        try:
            from megatron_monitor.kafka.member import Member

            address = daemon.services.page_url or f"http://{daemon.services.address}/"
            self._member = Member(daemon.followed, daemon.clock, daemon.live.wake, daemon.links, address)
        except ImportError as error:
            raise StartError(f"kafka: {error}; install megatron-monitor[kafka]") from error
        except Exception as error:
            raise StartError(f"kafka: {error}") from error

    @property
    def ready(self) -> bool:  # type: ignore[override]
        """Is all read that is ours?"""
        return self._member is not None and self._member.ready

    @property
    def notice(self) -> str:  # type: ignore[override]
        """What people should know of the group."""
        return self._member.notice if self._member is not None else ""

    def take(self, wait: float) -> None:
        """Records, and a turn for each partition."""
        assert self._member is not None
        self._member.take(wait)

    def cores(self) -> list[tuple[Core, float]]:
        """Those of the partitions that are ours."""
        return [(shard.core, shard.now()) for shard in self._member.shards] if self._member is not None else []

    def count(self, counts: MonitorCounts) -> None:
        """The share of this member, and what became of the records."""
        if self._member is not None:
            self._member.count(counts)

    def show(self, snapshots: list[Snapshot]) -> list[Snapshot]:
        """With who has which partition, and what was counted of partitions that are ours no more."""
        if (member := self._member) is None:
            return snapshots
        first = msgspec.structs.replace(snapshots[0], members=member.members)
        return [first, *snapshots[1:], Snapshot(at=0.0, monitor=member.gone.frozen(), ready=True)]

    def configure(self, config: Config) -> None:
        """Each partition goes on by another configuration."""
        if self._member is not None:
            self._member.configure(config)

    def close(self) -> None:
        """Leave the group; the partitions are saved."""
        if self._member is not None:
            self._member.close()


def for_daemon(daemon: Daemon) -> Topic | None:
    """None unless the configuration names brokers."""
    return Topic(daemon) if daemon.config.kafka.bootstrap else None
