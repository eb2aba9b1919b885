"""Plays the selected scenarios, many at once: one shared daemon a mode, daemons of their own where they need them."""

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "tests.e2e.scenarios.harness", *(f"tests.e2e.scenarios.group_{letter}" for letter in "abcdef")
)

from tests.conftest import SUMMARY  # noqa: E402
from tests.e2e.scenarios.harness import FAST, TOTALS, Daemon, Lab, forge  # noqa: E402
from tests.e2e.scenarios.registry import MODES, Case  # noqa: E402
from tests.programs import now  # noqa: E402

_AT_ONCE = 16  # they mostly wait


class Theatre:
    """Everything of one session."""

    def __init__(self, directory: Path, cases: list[Case]) -> None:
        self.directory = directory
        self.cases = cases
        self.stages: dict[str, Daemon] = {}
        forge()  # by the thread that lives longest
        for mode in MODES:
            if any(case.mode == mode for case in cases):
                self.stages[mode] = self._stage(mode)
        for stage in self.stages.values():
            stage.started()
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self.seconds: dict[str, float] = {}
        self.results: dict[str, Future[None]] = {}
        for case in sorted(cases, key=lambda case: (not case.own, -case.number)):  # those that take longest first
            self.results[case.name] = self._pool.submit(self._play, case)

    def root(self, mode: str) -> Path:
        """What the shared daemon of that mode follows."""
        return self.directory / (mode or "own") / "logs"

    def _stage(self, mode: str) -> Daemon:
        root = self.root(mode)
        root.mkdir(parents=True)
        control = {"mounts": {str(root): "nfs4"}} if mode == "poll" else {}
        paths = (f"{root}/**/*.log", f"{root}/**/main_*.log", f"{root}/**/*.rot*")
        settings = ("--listen", "127.0.0.1:0", *FAST, "--set", f"state_dir={self.directory}/{mode}/state")
        return Daemon(self.directory / mode / "daemon", (*settings, *paths), **control)

    def _play(self, case: Case) -> None:
        own = self.directory / "own" / "daemons" / case.name
        began = now()
        lab = Lab(self.root(case.mode), case.name, self.stages.get(case.mode), own, case.mode, case.writer)
        try:
            case.body(lab)
        finally:
            lab.close()
            self.seconds[case.name] = now() - began

    def summary(self) -> list[str]:
        """A table for the end: what was played, and what became of every unit."""
        rows = ["scenarios of the peers' list"]
        names = {"A": "reading", "B": "rotation", "C": "network", "D": "state", "E": "scale", "F": "daemon"}
        for group, name in names.items():
            futures = [self.results[case.name] for case in self.cases if case.group == group]
            passed = sum(one.done() and not one.cancelled() and one.exception() is None for one in futures)
            rows.append(f"{group} {name:10} {len(futures):4} played, {passed:4} as they should be")
        rows.append(
            f"faults injected {TOTALS['faults']}, units written {TOTALS['written']}, counted {TOTALS['counted']}, "
            f"lost {TOTALS['lost']}, doubled {TOTALS['doubled']}"
        )
        slowest = sorted(self.seconds.items(), key=lambda one: -one[1])[:8]
        return [*rows, "slowest: " + ", ".join(f"{name} {seconds:.0f} s" for name, seconds in slowest)]

    def close(self) -> None:
        """End everything."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        for stage in self.stages.values():
            stage.end()


@pytest.fixture(scope="session")
def theatre(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Theatre]:
    """Begins to play every selected scenario."""
    cases = [
        item.callspec.params["case"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "theatre" in item.fixturenames and hasattr(item, "callspec")
    ]
    theatre = Theatre(tmp_path_factory.mktemp("scenarios"), cases)
    yield theatre
    theatre.close()
    request.config.stash[SUMMARY] += theatre.summary()
