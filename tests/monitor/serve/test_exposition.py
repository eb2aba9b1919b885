"""The joined page against prometheus_client's own, byte for byte, while runs come, change and go."""

from __future__ import annotations

import gzip
from random import Random
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app

from monitor.metrics import CATALOGUE, Histogram, RunSnapshot, Sample, Snapshot
from monitor.serve import exposition
from monitor.serve.collector import SnapshotCollector, build_registry
from monitor.serve.exposition import Exposition
from monitor.serve.text import page_text

ACCEPTS = (
    "",
    "text/plain;version=0.0.4",
    "text/plain;version=1.0.0;escaping=allow-utf-8",
    "application/openmetrics-text;version=1.0.0",
    "application/openmetrics-text",
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,text/plain;version=0.0.4;q=0.3",
)
VALUES = (
    0.0, 1.0, 0.1 + 0.2, 1e300, -3.5, float("nan"), float("inf"), float("-inf"), 60.0, 999999.0, 1234567.0,
    1772352002.42, 10_000_000.0, -10_000_000.0, 1e16, 1.5e-7, 2.0**53,
)  # fmt: skip
NAMES = ("tr11", 'q"\\', "a # HELP b", "# EOF", "übung", "x" * 400, "tab\there\n")


def fetch(app: Any, accept: str, encoding: str = "", query: str = "") -> tuple[dict[str, str], bytes]:
    """(headers, body)."""
    told: list[dict[str, str]] = []
    environ = {
        "PATH_INFO": "/metrics", "REQUEST_METHOD": "GET", "QUERY_STRING": query,
        "HTTP_ACCEPT": accept, "HTTP_ACCEPT_ENCODING": encoding,
    }  # fmt: skip
    body = b"".join(app(environ, lambda _status, headers: told.append(dict(headers))))
    return told[0], body


def ours(body: bytes) -> bytes:
    """Without the families of the process, whose values move between two pages; the end stays."""
    begin, end = body.index(b"# HELP process_"), body.index(b"# HELP python_info")
    return body[:begin] + body[end:]


def any_run(name: str, chance: Random) -> RunSnapshot:
    """Samples for some rows of the catalogue."""
    samples: dict[str, Any] = {}
    for row in CATALOGUE:
        if chance.random() < 0.3:
            continue
        value = chance.choice(VALUES)
        if row.kind == "histogram":
            samples[row.name] = Histogram((("0.5", 1.0), ("+Inf", 2.0)), value)
        else:
            samples[row.name] = tuple(
                Sample(tuple(f'{number}"\\' for _ in row.labels), value) for number in range(2 if row.labels else 1)
            )
    return RunSnapshot(name, samples, {})


@pytest.mark.parametrize("accept", ACCEPTS)
def test_the_page_is_the_librarys_own(accept: str) -> None:
    """Whatever was kept of the scrape before."""
    chance = Random(5)
    runs = {name: any_run(name, chance) for name in NAMES}
    shown = Snapshot(at=0.0)
    joined, whole = Exposition(lambda: shown), make_wsgi_app(build_registry(lambda: shown))
    for turn in range(30):
        name = chance.choice(NAMES)
        if chance.random() < 0.3:
            runs.pop(name, None)
        else:
            runs[name] = any_run(name, chance)
        own = {"megatron_monitor_runs": (Sample((), float(turn)),)}
        shown = Snapshot(at=0.0, runs=tuple(runs[name] for name in sorted(runs)), monitor=own)
        (headers, body), (expected_headers, expected) = fetch(joined, accept), fetch(whole, accept)
        assert headers == expected_headers
        assert ours(body) == ours(expected)


@pytest.mark.parametrize("seed", range(20))
def test_the_text_of_one_reading_is_the_librarys_own(seed: int) -> None:
    """`run --once` writes the page without the library: the same bytes, and a bad family costs only itself."""
    chance = Random(seed)
    runs = [any_run(name, chance) for name in NAMES]
    if seed % 2:
        runs[0] = RunSnapshot("bad", {"megatron_iteration": (Sample(("one too many",), 1.0),)}, {})
    own = {
        "megatron_monitor_runs": (Sample((), chance.choice(VALUES)),),
        "megatron_monitor_events_total": (Sample(('a\n"\\',), chance.choice(VALUES)),),
        "megatron_monitor_bytes_total": (Sample(("one too many",), 1.0),),
    }
    snapshot = Snapshot(at=0.0, runs=tuple(runs), monitor=own)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(SnapshotCollector(lambda: snapshot))
    assert page_text(snapshot).encode() == generate_latest(registry)


def test_an_unchanged_run_is_not_formatted_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """And of a changed one only the families that changed."""
    made: list[tuple[str, str]] = []
    build = exposition.run_family

    def counted(name: str, kind: Any, documentation: str, labels: tuple[str, ...], runs: Any) -> Any:
        made.append((runs[0].run, name))
        return build(name, kind, documentation, labels, runs)

    monkeypatch.setattr(exposition, "run_family", counted)
    first = {"megatron_iteration": (Sample((), 1.0),), "megatron_world_size": (Sample((), 8.0),)}
    runs = [RunSnapshot(name, dict(first), {}) for name in "ab"]
    app = Exposition(lambda: Snapshot(at=0.0, runs=tuple(runs)))
    fetch(app, "")
    assert len(made) == 4
    made.clear()
    runs[1] = RunSnapshot("b", {**first, "megatron_iteration": (Sample((), 2.0),)}, {})
    assert b'megatron_iteration{run="b"} 2.0\n' in fetch(app, "")[1]
    assert made == [("b", "megatron_iteration")]


def test_a_bad_family_of_one_run_costs_that_family_of_that_run() -> None:
    """The other runs keep theirs."""
    good = RunSnapshot("good", {"megatron_iteration": (Sample((), 1.0),)}, {})
    samples = {"megatron_iteration": (Sample(("one too many",), 1.0),), "megatron_lm_loss": (Sample((), 2.0),)}
    bad = RunSnapshot("bad", dict(samples), {})
    body = fetch(Exposition(lambda: Snapshot(at=0.0, runs=(bad, good))), "")[1]
    assert b'megatron_iteration{run="good"} 1.0\n' in body
    assert b'megatron_iteration{run="bad"}' not in body
    assert b'megatron_lm_loss{run="bad"} 2.0\n' in body


def test_gzip() -> None:
    """As the library offers it."""
    run = RunSnapshot("a", {"megatron_iteration": (Sample((), 1.0),), "megatron_lm_loss": (Sample((), 2.0),)}, {})
    app = Exposition(lambda: Snapshot(at=0.0, runs=(run,)))
    headers, body = fetch(app, "", encoding="gzip")
    assert headers["Content-Encoding"] == "gzip"
    assert ours(gzip.decompress(body)) == ours(fetch(app, "")[1])


def test_many_versions_are_not_all_kept() -> None:
    """A client chooses the version's text; it must not fill the memory."""
    app = Exposition(lambda: Snapshot(at=0.0))
    for minor in range(20):
        fetch(app, f"application/openmetrics-text;version=1.0.{minor}")
    assert len(app._formats) == 4


@pytest.mark.parametrize("accept", ACCEPTS)
@pytest.mark.parametrize(
    "names",
    [
        ("megatron_loss",),
        ("megatron_iterations_total", "megatron_monitor_runs", "no_such_thing"),
        ("megatron_iteration_duration_seconds_bucket",),
        ("megatron_iteration_duration_seconds_sum", "megatron_iteration_duration_seconds_count", "megatron_loss"),
        ("process_start_time_seconds", "python_info"),
        ("no_such_thing",),
    ],
)
def test_names_choose_samples(names: tuple[str, ...], accept: str) -> None:
    """`?name[]=`, several of them: these samples of the whole page and no others, each under its family."""
    chance = Random(7)
    runs = tuple(any_run(name, chance) for name in NAMES)
    own = {"megatron_monitor_runs": (Sample((), 7.0),), "megatron_monitor_bytes_total": (Sample((), 9.0),)}
    app = Exposition(lambda: Snapshot(at=0.0, runs=runs, monitor=own))
    query = "&".join(f"name%5B%5D={name}" for name in names)
    whole, chosen = (fetch(app, accept, query=some)[1].decode() for some in ("", query))
    wanted = [row for row in whole.splitlines() if row.replace("{", " ").split(" ")[0] in names]
    told = chosen.splitlines()
    assert sorted(row for row in told if not row.startswith("#")) == sorted(wanted)
    assert bool(wanted) == (names != ("no_such_thing",))
    families = [row.split(" ")[2] for row in told if row.startswith("# TYPE ")]
    assert all(any(name.startswith(family) for name in names) for family in families)
    assert len(families) == len(set(families))
