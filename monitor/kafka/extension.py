"""The Kafka part of the daemon: each partition that this member owns has a core of its own."""

from typing import TYPE_CHECKING

from megatron_monitor.extensions import Service
from megatron_monitor.services import StartError

if TYPE_CHECKING:
    from megatron_monitor.daemon import Daemon


def for_daemon(daemon: "Daemon") -> Service | None:
    """Return a member of the group; None unless the configuration names brokers. Raises StartError."""
    if not daemon.config.kafka.bootstrap:
        return None
    try:
        from megatron_monitor.kafka.member import Member
    except ImportError as error:
        raise StartError(f"kafka: {error}; install megatron-monitor[kafka]") from error
    return Member(daemon)
