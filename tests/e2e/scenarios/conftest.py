"""Plays the selected scenarios, many at once: one shared daemon a mode, daemons of their own where they need them."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

pytest.register_assert_rewrite(
    "tests.e2e.scenarios.harness", *(f"tests.e2e.scenarios.group_{letter}" for letter in "abcdef")
)

from tests.e2e.scenarios.harness import FAST, TOTALS, Daemon, Lab  # noqa: E402
from tests.e2e.scenarios.registry import MODES, Case  # noqa: E402

_AT_ONCE = 8  # they mostly wait


class Theatre:
    """Everything of one session."""

    def __init__(self, directory: Path, cases: list[Case]) -> None:
        self.directory = directory
        self.cases = cases
        self.stages: dict[str, Daemon] = {}
        for mode in MODES:
            if any(case.mode == mode for case in cases):
                self.stages[mode] = self._stage(mode)
        for stage in self.stages.values():
            stage.started()
        self._pool = ThreadPoolExecutor(_AT_ONCE)
        self.results: dict[str, Future[None]] = {case.name: self._pool.submit(self._play, case) for case in cases}

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
        lab = Lab(self.root(case.mode), case.name, self.stages.get(case.mode), own, case.mode, case.writer)
        try:
            case.body(lab)
        finally:
            lab.close()

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
    request.config.stash[PLAYED] = theatre


PLAYED: pytest.StashKey[Theatre] = pytest.StashKey()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One table at the end: what was played, and what became of every unit."""
    theatre = config.stash.get(PLAYED, None)
    if theatre is None:
        return
    rows: dict[str, list[int]] = {}
    for case in theatre.cases:
        row = rows.setdefault(case.group, [0, 0])
        future = theatre.results[case.name]
        row[0] += 1
        row[1] += future.done() and not future.cancelled() and future.exception() is None
    say = terminalreporter.write_line
    terminalreporter.section("scenarios of the peers' list")
    names = {"A": "reading", "B": "rotation", "C": "network", "D": "state", "E": "scale", "F": "daemon"}
    for group, (played, passed) in sorted(rows.items()):
        say(f"{group} {names[group]:10} {played:4} played, {passed:4} as they should be")
    say(
        f"faults injected {TOTALS['faults']}, units written {TOTALS['written']}, counted {TOTALS['counted']}, "
        f"lost {TOTALS['lost']}, doubled {TOTALS['doubled']}"
    )
