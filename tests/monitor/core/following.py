"""A core that follows several logs, which grow as time passes."""

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved
from megatron_monitor.follow.content import Content
from megatron_monitor.follow.messages import CaughtUp, Data, Opened
from megatron_monitor.incidents import Transition
from megatron_monitor.run.state import RunState
from megatron_monitor.serve.past import history_json
from tests.lines import dump, line
from tests.monitor.extended import extended
from tests.plain import Disk, decode, encode

NOW = 1_700_000_000.0


def step(number: int, loss: float = 3.0, total: int = 1000, seconds: float = 10.0) -> str:
    """An iteration line of Megatron; `loss` is that of the first iteration."""
    return line(number, total, seconds, loss - number / 1000, batch=64, norm=loss * number / 7)


def arguments(**values: object) -> str:
    """An arguments dump."""
    return dump(**{"num_layers": 32, "hidden_size": 4096, "world_size": 16, "micro_batch_size": 4} | values)


class Following:
    """Its clock, its logs, and what was told."""

    def __init__(self, *settings: str, owner: int | None = 1000) -> None:
        """`owner`: the user id of the files."""
        self.settings, self.owner = settings, owner
        self.core = self._begun()
        self.now, self.reported = NOW, list[Transition]()
        self.written: dict[str, bytes] = {}
        self.kept = Disk()

    def _begun(self) -> Core:
        core = extended(Core(load("", list(self.settings))))
        core.dormant_seconds = float("-inf")  # what is no training is dormant at once
        return core

    def open(self, path: str, backlog: str = "", age: float = 0.0) -> None:
        """A file is found, with what stands in it, last written `age` seconds ago."""
        written = self.now - age
        self.core.handle(Opened(path, path, None, 0, written, False, owner=self.owner), self.now)
        self.written[path] = backlog.encode()
        if backlog:
            self.core.handle(Data(path, 0, backlog.encode(), written, self.now, 0, self._read(path)), self.now)
        self.core.handle(CaughtUp(path, self.now), self.now)

    def write(self, path: str, text: str | bytes) -> None:
        """A log grows."""
        if path not in self.written:
            self.open(path)
        offset, data = len(self.written[path]), text if isinstance(text, bytes) else text.encode()
        self.written[path] += data
        self.core.handle(Data(path, offset, data, self.now, self.now, 0, self._read(path)), self.now)

    def _read(self, path: str) -> Content:
        return Content().advance(0, self.written[path])

    def wait(self, seconds: float) -> None:
        """Time passes."""
        for _ in range(int(seconds)):
            self.now += 1.0
            self.reported += self.core.tick(self.now)
            self.kept.save(self.core, self.now)

    def saved(self) -> Saved:
        """What a restart finds. What was saved when it changed is what is saved at once."""
        self.kept.save(self.core, self.now)
        saved, whole = self.kept.saved(), self.core.save(self.now)
        assert saved.sources.keys() == whole.sources.keys()
        assert {name: encode(one.position) for name, one in saved.sources.items()} == {
            name: encode(one.position) for name, one in whole.sources.items()
        }
        for name, run in whole.runs.items():
            kept, state = saved.runs[name].state, decode(encode(run.state), RunState)
            assert history_json(kept.history) == history_json(state.history), name
            kept.history = state.history
            assert kept == state, name
            assert len(encode(kept)) == len(encode(state)), name  # not the bytes: sets have no order
        assert saved.runs.keys() == whole.runs.keys()
        return saved

    def killed(self, away: float = 0.0) -> None:
        """It is killed by -9 and started after so many seconds: the next daemon has the state file, and reads on where
        that says.
        """
        saved = self.saved()
        self.now += away
        self.core = self._begun()
        positions = self.core.restore(saved)
        for path, data in self.written.items():
            position = positions.get(path)
            offset = position.start if position is not None else 0
            resumed = position is not None
            known = Content(offset=offset, proved=position)
            self.core.handle(Opened(path, path, known, len(data), self.now, resumed, owner=self.owner), self.now)
            if data[offset:]:
                self.core.handle(Data(path, offset, data[offset:], self.now, self.now, 0, self._read(path)), self.now)
            self.core.handle(CaughtUp(path, self.now), self.now)

    def pages(self) -> dict[str, dict[str, object]]:
        """Run -> what HTTP shows of it."""
        return {run.run: run.page for run in self.core.snapshot(self.now).runs}

    def totals(self, metric: str = "megatron_iterations_total") -> dict[str, float]:
        """Run -> the value of a metric with no other label."""
        runs = self.core.snapshot(self.now).runs
        return {run.run: sum(one.value for one in run.samples[metric]) for run in runs}  # type: ignore[union-attr,misc]

    def firing(self, kind: str) -> list[str]:
        """The runs of which an incident of that kind was told."""
        return [
            one.run for one in self.reported if one.incident == kind and one.status == "firing" and not one.display_only
        ]
