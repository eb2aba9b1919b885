"""What is owed is saved at once, with the log that it tells of; the others, however many, are saved in their time. A
daemon that is killed between counts each line once, and tells nothing twice.
"""

from pathlib import Path

import pytest

from megatron_monitor.core import Core
from megatron_monitor.core.outbox import Tried
from megatron_monitor.core.saved import EXTENSION, OWED, Saved, of_parts
from megatron_monitor.saving import Saving
from megatron_monitor.store import Store
from tests.clock import ManualClock
from tests.monitor.core.following import Following, step
from tests.programs import slack

DIES = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\nsrun: error: n1: task 0: Exited\n"
LOGS = [f"/logs/{name}.log" for name in "abcdefgh"]


class Site(Following):
    """Its state is in a directory, and takes long to save: what has changed is saved once a minute."""

    def __init__(self, directory: Path) -> None:
        super().__init__("runs=[{paths: [/logs/*.log]}]")
        self.clock, self.directory = ManualClock(), directory
        self.saving = Saving(self.core, self.clock, lambda: None)
        self.saving.load(directory)
        self.iteration = 0

    def train(self, seconds: int, logs: list[str] = LOGS) -> None:
        """An iteration a second to each log."""
        for _ in range(seconds):
            self.iteration += 1
            for path in logs:
                self.write(path, step(self.iteration, seconds=1.0))
            self.turn()

    def turn(self) -> None:
        """A second passes. What is told is owed to somebody, as the daemon does it."""
        self.now += 1.0
        self.clock.advance(1.0)
        for one in self.core.tick(self.now):
            self.told.append(one)
            self.core.outbox.owe(one, ["chat"], self.now)
            self.saving.at_once()
        self.saving.turn(self.now)
        assert self.saving._saver is not None
        assert self.saving._saver.wait(slack(10.0))
        self.saving.turn(self.now)  # it learns that this is there
        assert self.saving._saver.wait(slack(10.0))

    def saved(self) -> Saved:
        """What a restart finds."""
        parts, problems = Store(self.directory).load()
        assert parts is not None
        saved = of_parts(parts, problems)
        assert saved is not None
        assert not problems
        return saved


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """It has trained, and all of that was saved once."""
    monkeypatch.setattr("megatron_monitor.saving.pause_after", lambda _size, _seconds: 60.0)
    site = Site(tmp_path)
    site.train(40)
    site.saving.at_once(whole=True)
    site.train(1)
    return site


def offsets(saved: Saved) -> dict[str, int]:
    """Log -> how far it is saved."""
    return {name: one.position.offset for name, one in saved.sources.items()}


def test_a_message_waits_for_its_own_log_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of eight dies; killed then, the next daemon owes the same message, and tells no other."""
    asked: list[set[str]] = []
    parts = Core.parts

    def noting(core: Core, now: float, **how: bool) -> dict[str, bytes | None]:
        found = parts(core, now, **how)
        asked.append({name.split("\0charts\0")[-1].split("\0")[0] or name for name in found})
        return found

    monkeypatch.setattr(Core, "parts", noting)
    whole = offsets(site.saved())
    site.train(5)
    site.write(LOGS[0], DIES)
    for _ in range(12):
        site.turn()
    (message,) = site.told
    assert (message.run, message.incident) == ("a", "crash")
    assert site.core.outbox.saved == site.core.outbox.last
    assert asked, "nothing was saved"
    parts = {name for name in set().union(*asked) if not name.startswith(EXTENSION)}
    assert parts <= {"a", OWED}

    found = site.saved()
    assert [one.message for one in found.owed["chat"]] == [message]
    assert {path for path, offset in offsets(found).items() if offset != whole[path]} == {LOGS[0]}
    assert found.sources[LOGS[0]].saved_at > found.sources[LOGS[1]].saved_at
    assert found.heard_at == found.sources[LOGS[0]].saved_at  # the clock goes on behind all that is saved

    before = site.totals()
    site.saving.release()
    site.killed()
    told = list(site.told)
    for _ in range(20):
        site.now += 1.0
        site.told += site.core.tick(site.now)
    assert site.totals() == before
    assert site.told == told
    assert [one.message for one in site.core.outbox.save()["chat"]] == [message]


def test_an_accepted_message_is_saved_without_any_log(site: Site) -> None:
    """A crash must not send it again; what its run did since is saved later."""
    site.write(LOGS[0], DIES)
    for _ in range(12):
        site.turn()
    site.train(3, LOGS[1:])
    (owed,) = site.core.outbox.batch("chat", site.now)
    site.core.outbox.settle("chat", [Tried(owed.number, "sent")], site.now)
    before = offsets(site.saved())
    site.turn()
    found = site.saved()
    assert found.owed == {}
    assert (("chat", "sent"), 1.0) in found.counts["megatron_monitor_notifications_total"]
    assert offsets(found) == before


def test_what_moves_between_logs_is_saved_whole(site: Site) -> None:
    """A log that takes lines from another one is never saved without that: a message goes with everything then."""
    before = offsets(site.saved())
    site.train(2)
    site.core.save_soon = True
    site.saving.at_once()
    site.turn()
    assert all(offset > before[path] for path, offset in offsets(site.saved()).items())
