"""Finished logs replayed: what people are told of them, and their runs at the end."""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from megatron_monitor.config import Config, Watch
from megatron_monitor.core.runs import Run
from megatron_monitor.incidents import Transition
from megatron_monitor.parsers.events import LogEvent
from megatron_monitor.replay import Replay, replay


class Ended(NamedTuple):
    """A run at the end of its logs."""

    run: Run
    player: Replay

    def summary(self) -> dict[str, Any]:
        """Its figures."""
        return self.player.summary(self.run)


def replayed(
    sources: Mapping[str, Iterable[LogEvent]], after: float = 10.0, config: Config | None = None
) -> tuple[dict[str, Ended], list[Transition]]:
    """(the runs of logs, by their paths, that are read together as `run`, what people are told of them)."""
    config = config or Config(runs=(Watch(paths=tuple(sources), name="run"),))
    runs, reported = dict[str, Ended](), list[Transition]()
    for player, item in replay(config, sources, after):
        if not isinstance(item, Transition):
            runs[item.state.name] = Ended(item, player)
        elif not item.display_only:
            reported.append(item)
    return runs, reported
