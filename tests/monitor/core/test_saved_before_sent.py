"""A message is saved, with all that it was told of, before it is sent: killed then, the next daemon owes the same."""

from pathlib import Path

import pytest

from megatron_monitor.core.outbox import DeliveryResult
from megatron_monitor.core.saved import Saved, of_parts
from megatron_monitor.saving import Saving
from megatron_monitor.store import Store
from tests.clock import ManualClock
from tests.monitor.core.following import Following, step
from tests.programs import slack

DIES = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nsrun: error: n1: task 0: Exited\n"


class Site(Following):
    """Its state is in a directory, and saved once a minute unless there is more of a hurry."""

    def __init__(self, directory: Path) -> None:
        super().__init__("runs=[{paths: [/logs/*.log]}]")
        self.clock, self.directory = ManualClock(), directory
        self.saving = Saving(self.core, self.clock, lambda: None)
        self.saving.load(directory)
        for number in range(1, 41):
            self.write("/logs/a.log", step(number, seconds=1.0))
            self.turn()

    def turn(self) -> None:
        """A second passes. What is told is owed to somebody, as the daemon does it."""
        self.now += 1.0
        self.clock.advance(1.0)
        for one in self.core.tick(self.now):
            self.reported.append(one)
            self.core.outbox.enqueue(one, ["chat"], self.now)
            self.saving.soon()
        for _ in range(2):  # it learns that this is there
            self.saving.turn(self.now)
            assert self.saving.wait(slack(10.0))

    def saved(self) -> Saved:
        """What a restart finds."""
        parts, problems = Store(self.directory).load()
        assert parts is not None
        saved = of_parts(parts, problems)
        assert saved is not None
        assert not problems
        return saved


def test_a_message_is_owed_over_a_crash_and_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Killed before it was sent, the next daemon owes the same and tells no other; accepted, it is owed no more."""
    monkeypatch.setattr("megatron_monitor.saving.pause_after", lambda _size, _seconds: 60.0)
    site = Site(tmp_path)
    site.write("/logs/a.log", DIES)
    for _ in range(12):
        site.turn()
    (message,) = site.reported
    assert (message.run, message.incident) == ("a", "crash")
    assert site.core.outbox.saved == site.core.outbox.last
    assert [one.message for one in site.saved().pending["chat"]] == [message]

    before = site.totals()
    site.saving.release()
    site.killed()
    for _ in range(20):
        site.now += 1.0
        site.reported += site.core.tick(site.now)
    assert site.totals() == before
    assert site.reported == [message]
    (pending,) = site.core.outbox.save()["chat"]
    assert pending.message == message

    site.saving = Saving(site.core, site.clock, lambda: None)
    site.saving.load(tmp_path)
    site.core.outbox.batch("chat", site.now)
    site.core.outbox.settle("chat", [DeliveryResult(pending.number, "sent")], site.now)
    site.clock.advance(60.0)
    site.turn()
    found = site.saved()
    assert found.pending == {}
    assert (("chat", "sent"), 1.0) in found.counts["megatron_monitor_notifications_total"]
