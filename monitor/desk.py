"""A core at its desk: its transitions become messages that are owed, saved, then sent; its optional parts have turns.

The daemon has one for all that it follows, and one for each partition of a Kafka topic while that is its own.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from megatron_monitor.config import Config
from megatron_monitor.core import Core
from megatron_monitor.core.extension import Runtime
from megatron_monitor.deliveries import Deliveries
from megatron_monitor.extensions import extend
from megatron_monitor.incidents import Transition
from megatron_monitor.saving import Saving
from megatron_monitor.scalars import one_line
from megatron_monitor.system.clock import Clock

_log = logging.getLogger(__name__)

Links = Callable[[Transition], Mapping[str, str]]


class Desk:
    """For the loop's thread. Instants are those of its core."""

    def __init__(self, core: Core, config: Config, clock: Clock, wake: Callable[[], None], links: Links) -> None:
        """`wake` makes the loop turn, from any thread; `links` are what a reader of a message may open."""
        self.core, self._links = core, links
        self.saving = Saving(core, clock, wake)
        self.deliveries = Deliveries(config.notifiers, clock, wake)
        self.deliveries.accepted = self.saving.accepted
        extend(core, Runtime(clock, wake, self.saving.at_once))

    def start(self, config: Config) -> None:
        """What is owed by what was restored can be sent from now on."""
        self.core.outbox.receivers(notifier.name for notifier in config.notifiers)

    def configure(self, config: Config, before: Config, seconds: float) -> None:
        """Go on by another configuration; notifiers that it replaces have so many seconds for what they are at."""
        if config.notifiers != before.notifiers:
            self.deliveries.replace(config.notifiers, seconds)
        self.start(config)

    def judge(self, now: float, until: float | None = None, *, act: bool = True) -> None:
        """Judge what is due (`until`: as at that instant), and let the optional parts work before and after it. Not
        `act`: `now` has passed, and what they do waits.
        """
        extensions = self.core.extensions if act else ()
        for extension in extensions:
            extension.look(now)
        for transition in self.core.tick(now if until is None else until):
            self._report(transition, now)
        for extension in extensions:
            for transition, to in extension.act(now):
                self._report(transition, now, to)

    def stop(self) -> None:
        """End the threads of the optional parts."""
        for extension in self.core.extensions:
            extension.stop()

    def _report(self, transition: Transition, now: float, to: Sequence[str] | None = None) -> None:
        level = logging.WARNING if transition.status == "firing" and not transition.quiet else logging.INFO
        _log.log(
            level, "run=%s incident=%s status=%s severity=%s %s",
            transition.run, transition.incident, transition.status, transition.severity, one_line(transition.summary),
        )  # fmt: skip
        if transition.kept_back and transition.status == "firing":
            self.core.outbox.suppress(self.deliveries.receivers(replace(transition, quiet=False)))
        if not transition.quiet:
            linked = replace(transition, links=dict(self._links(transition)))
            receivers = self.deliveries.receivers(transition) if to is None else to
            self.core.outbox.owe(linked, receivers, now)
            self.saving.at_once()

    def finish(self, now: float, seconds: float) -> None:
        """Send once more what is owed, within so many seconds; what was delivered is not sent again."""
        self.deliveries.finish(self.core.outbox, now, seconds)
        if self.core.outbox.changed:
            self.saving.save_last(now)
