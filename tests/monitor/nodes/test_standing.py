"""The record of the nodes: who stands out, and above all who does not."""

import itertools
import json
import math
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.core.saved import Saved
from megatron_monitor.follow.messages import CaughtUp, Data, Opened
from megatron_monitor.node_statistics.chance import binomials_tail, strata_tail
from megatron_monitor.node_statistics.ledger import Ledger
from megatron_monitor.node_statistics.standing import Standing, standings
from megatron_monitor.nodes.hostlist import compress, expand
from megatron_monitor.run.launch_record import LaunchRecord
from megatron_monitor.serve.exchange import Request
from megatron_monitor.serve.views import view_of
from megatron_monitor.store import Store
from tests.commands import command
from tests.monitor.extended import extended, statistics
from tests.plain import decode, encode

NAMES = expand("jz-[001-040]")


def launch(
    number: int, nodes: list[str], outcome: str = "finished", named: dict[str, list[str]] | None = None
) -> LaunchRecord:
    """One launch of a run, two hours after the one before."""
    planned = outcome == "finished"
    return LaunchRecord("run", number, 7200.0 * number, compress(nodes), True, outcome, planned, named or {})


def out(launches: Iterator[LaunchRecord]) -> list[Standing]:
    """The nodes that stand out of these launches."""
    ledger = Ledger()
    for one in launches:
        ledger.put(one)
    return [one for one in standings(ledger) if one.stands_out]


def test_tails_are_exact() -> None:
    """Against every case counted out."""
    chances = [0.5, 0.2, 0.1, 0.7]
    cases = itertools.product(*((p, 1 - p) for p in chances))
    happened = itertools.product((1, 0), repeat=4)
    by_hand = sum(math.prod(case) for case, which in zip(cases, happened, strict=True) if sum(which) >= 2)
    assert binomials_tail(chances, 2) == pytest.approx(by_hand)
    assert binomials_tail([1e-3] * 50, 9) == pytest.approx(math.comb(50, 9) * 1e-27, rel=0.05)  # no loss near 0
    assert strata_tail([(10, 4, 3)], 3) == pytest.approx(4 / 120)
    assert strata_tail([(10, 4, 3), (2, 1, 1)], 4) == pytest.approx(4 / 120 / 2)


def _log(seed: int, bad: str | None) -> str:
    """60 launches of 8 of 40 nodes under srun; the bad node breaks four of five launches that it is in by an ECC error,
    programs fail on rank 3 and others end without a word.
    """
    rng, text, minutes = random.Random(seed), [], 0
    for number in range(60):
        nodes = sorted(rng.sample(NAMES, 8))
        text += [f"SLURM_JOB_NODELIST={compress(nodes)}\n", "using world size: 32, data-parallel-size: 8, "
                 "tensor-model-parallel size: 4, pipeline-model-parallel size: 1\n"]  # fmt: skip
        for step in range(1, 11):
            minutes += 3
            stamp = f"2026-03-{1 + minutes // 1440:02d} {minutes // 60 % 24:02d}:{minutes % 60:02d}:00"
            text.append(
                f" [{stamp}] iteration {10 * number + step:8d}/   10000 | elapsed time per iteration (ms): 180000.0 "
                "| global batch size:    32 | lm loss: 2.1E+00 |\n"
            )
        if bad in nodes and rng.random() < 0.8:
            rank = 4 * nodes.index(str(bad)) + rng.randrange(4)
            text.append(f"[rank{rank}]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered\n")
        elif rng.random() < 0.3:
            text.append("[rank3]: RuntimeError: CUDA error: an illegal memory access was encountered\n")
        text.append(f"srun: error: {nodes[1]}: task 5: Exited with exit code 1\n")
    return "".join(text)


def test_the_command_finds_the_bad_node_in_logs_and_lists_it_for_slurm(tmp_path: Path) -> None:
    """The list alone on standard output, why on standard error; a cluster without a bad node gives no list."""
    for name, bad in (("bad", "jz-017"), ("good", None)):
        (tmp_path / f"{name}.log").write_text(_log(5, bad))
    found = command("nodes", "--exclude", tmp_path / "bad.log")
    assert found.stdout == "jz-017\n"
    assert "jz-017: named by 7 of 7 failures (ecc 7), 0.88 due by chance" in found.stderr
    table = command("nodes", tmp_path / "bad.log")
    assert "40 nodes in 60 launches; 1 stands out" in table.stdout
    none = command("nodes", "--exclude", tmp_path / "good.log")
    assert (none.stdout, none.stderr) == ("", "no node stands out\n")


def test_the_record_outlives_the_daemon(tmp_path: Path) -> None:
    """Half of the log, a restart, the other half: as if it had been read at once; the command reads what was saved."""
    config = load("", ["runs=[{paths: [/logs/*.log]}]"])
    text, path = _log(5, "jz-017").encode(), "/logs/r.log"
    half = text.index(b"\n", len(text) // 2) + 1
    core = extended(Core(config))
    core.handle(Opened(path, path, None, 0, 1.7e9, False), 1.7e9)
    core.handle(Data(path, 0, text[:half], 1.7e9, 1.7e9, 0), 1.7e9)
    core.handle(CaughtUp(path, 1.7e9), 1.7e9)
    core.tick(1.7e9)
    saved = decode(encode(core.save(1.7e9)), Saved)
    assert 20 < len(statistics(core).ledger.launches) < 40
    again = extended(Core(config))
    again.restore(saved)
    again.handle(Opened(path, path, None, half, 1.7e9, True), 1.7e9)
    again.handle(Data(path, half, text[half:], 1.7e9, 1.7e9, 0), 1.7e9)
    again.handle(CaughtUp(path, 1.7e9), 1.7e9)
    again.tick(1.7e9)
    assert len(statistics(again).ledger.launches) == 60
    snapshot = again.snapshot(1.7e9)
    assert [(one.labels, one.value) for one in snapshot.monitor["megatron_node_suspect"]] == [(("jz-017",), 7.0)]
    page = view_of(Request(path="/nodes"), snapshot, 1.7e9)
    assert page is not None
    assert b"<li><b>jz-017</b>: named by 7 of 7 failures" in page.body
    assert Store(tmp_path).save(again.parts(1.7e9))
    shown = command("nodes", "--json", "--set", f"state_dir={tmp_path}")
    first = json.loads(shown.stdout)["nodes"][0]
    assert (first["node"], first["stands_out"], first["named"]["seen"]) == ("jz-017", True, 7)


def test_a_rank_that_fails_again_and_again_accuses_no_node() -> None:
    """The same bug of the same rank, requeued twenty times on the same nodes; then on the first node of others."""
    rng = random.Random(1)
    same = sorted(rng.sample(NAMES, 8))
    requeued = (launch(n, same, "segfault", {same[5]: ["segfault"]}) for n in range(20))
    assert out(requeued) == []
    on_rank_0 = [sorted({NAMES[0], *rng.sample(NAMES[1:], 7)}) for _ in range(20)]
    assert out(launch(n, nodes, "host_oom", {nodes[0]: ["host_oom"]}) for n, nodes in enumerate(on_rank_0)) == []
    moved = [sorted({NAMES[20], *rng.sample(NAMES, 7)}) for _ in range(20)]
    (true,) = out(launch(n, nodes, "segfault", {NAMES[20]: ["segfault"]}) for n, nodes in enumerate(moved))
    assert true.node == NAMES[20]  # at another place among the ranks each time


def looks(launches: list[LaunchRecord], every: int = 1) -> set[str]:
    """The nodes that stand out at any look, one after so many launches."""
    ledger, found = Ledger(), set[str]()
    for number, one in enumerate(launches, 1):
        ledger.put(one)
        if number % every == 0:
            found |= {node.node for node in standings(ledger) if node.stands_out}
    return found


def _crash(number: int, nodes: list[str], place: int, **fields: str) -> LaunchRecord:
    """A process dies at this place of the ranks."""
    kind = fields.pop("kind", "segfault")
    told = replace(launch(number, nodes, kind, {nodes[place]: [kind]}), layout="64 512 2048")
    return replace(told, **fields)


@pytest.mark.parametrize("seed", range(10))
def test_one_bug_accuses_nobody_whatever_its_runs_and_its_failures_are_called(seed: int) -> None:
    """Each job's log is a run of its own, as `nodes '/logs/**/*.out'` names them; a bug has several ends."""
    rng = random.Random(seed)
    nodes = sorted(rng.sample(NAMES, 16))
    ids = [_crash(n, nodes, 5, run=f"logs/tr-{1700 + 7 * n}/3f{n:02d}a1b0") for n in range(30)]
    assert looks(ids) == set()
    kinds = [
        _crash(n, nodes, 5, kind=rng.choice(["segfault", "host_oom", "cuda_error", "bus_error"])) for n in range(30)
    ]
    assert looks(kinds) == set()
    jobs = [_crash(n, nodes, 5, run=name, script="alice train-7B") for n, name in enumerate("abcdefgh")]
    assert looks(jobs) == set()
    others = [replace(one, script=f"{one.run} sft") for one in jobs]  # the near miss: eight users' programs
    assert looks(others) == {nodes[5]}


@pytest.mark.parametrize("seed", range(8))
def test_a_bug_that_comes_and_goes_with_a_rack_accuses_none_of_its_nodes(seed: int) -> None:
    """30 launches on a rack fail, the bug is mended, 60 on all nodes end well. Today's launches say nothing of last
    week's; a node that breaks launches among good ones is found as before.
    """
    rng, names = random.Random(seed), expand("n[001-200]")
    allotted = [sorted(rng.sample(names[:32] if n < 30 else names, 16)) for n in range(90)]
    mended = [launch(n, nodes, "unknown" if n < 30 else "finished") for n, nodes in enumerate(allotted)]
    assert looks(mended, 10) == set()
    mixed = [sorted(rng.sample(names[:40], 8)) for _ in range(90)]
    broken = [launch(n, nodes, "hang" if names[7] in nodes else "finished") for n, nodes in enumerate(mixed)]
    assert looks(broken, 15) == {names[7]}


def test_launches_far_apart_in_time_are_not_compared() -> None:
    """Six that fail on one node, six elsewhere that end well, again and again: within days it is the node. A month
    apart it may as well be what was mended in between.
    """
    found = {}
    for apart in (7200.0, 30 * 86400.0 / 6):
        rng = random.Random(6)
        bad = [n // 6 % 2 == 0 for n in range(36)]
        nodes = [sorted({*rng.sample(NAMES[2:], 7), NAMES[0 if one else 1]}) for one in bad]
        told = [launch(n, nodes[n], "hang" if one else "finished") for n, one in enumerate(bad)]
        at = [apart * (n // 6 * 6) + 60.0 * n for n in range(36)]
        found[apart] = [one.node for one in out(replace(one, at=at[one.number]) for one in told)]
    assert list(found.values()) == [[NAMES[0]], []]


def test_the_command_accuses_nobody_of_four_jobs_with_one_bug(tmp_path: Path) -> None:
    """As README shows it: a glob over the jobs' logs, each a run."""
    nodes = expand("n[001-016]")
    for number in range(4):
        head = f"SLURM_JOB_NODELIST={compress(nodes)}\nusing world size: 64, data-parallel-size: 64\n"
        step = (
            f" [2026-03-0{number + 1} 10:00:00] iteration 1/ 100 | elapsed time per iteration (ms): 9.0 | lm loss: 2 |"
        )
        crash = "srun: error: n006: task 21: Segmentation fault (core dumped)\n"
        (tmp_path / f"tr11-{1700 + number}.out").write_text(f"{head}{step}\n{crash}")
    found = command("nodes", "--exclude", tmp_path / "*.out")
    assert (found.stdout, found.stderr) == ("", "no node stands out\n")
    table = command("nodes", tmp_path / "*.out")
    assert "n006         4  1 (0.062)" in table.stdout
    assert "16 nodes in 4 launches; none stands out" in table.stdout


def test_a_failure_of_all_nodes_is_of_none() -> None:
    """An illegal access on every rank names every node."""
    rng = random.Random(2)
    allotted = [sorted(rng.sample(NAMES, 8)) for _ in range(30)]
    named = [{node: ["cuda_error"] for node in nodes} for nodes in allotted]
    assert out(launch(n, nodes, "cuda_error", named[n]) for n, nodes in enumerate(allotted)) == []


def _unnamed(together: bool) -> Iterator[LaunchRecord]:
    """80 launches; each with jz-017 hangs, and jz-018 is always or seldom beside it."""
    rng = random.Random(3)
    for number in range(80):
        nodes = set(rng.sample([name for name in NAMES if name not in ("jz-017", "jz-018")], 7))
        if rng.random() < 0.25:
            nodes |= {"jz-017", "jz-018"} if together or rng.random() < 0.3 else {"jz-017"}
        elif not together and rng.random() < 0.2:
            nodes.add("jz-018")
        yield launch(number, sorted(nodes), "hang" if "jz-017" in nodes else "finished")


def test_launches_alone_name_a_node_and_not_the_one_beside_it() -> None:
    """No line names a node. Where two were always together neither is accused: nobody can tell which."""
    (found,) = out(_unnamed(together=False))
    assert found.node == "jz-017"
    assert "launches that failed without naming a node" in found.evidence
    assert out(_unnamed(together=True)) == []


def test_the_record_is_bounded() -> None:
    """Half a year, a million characters of node lists: the oldest launches go."""
    ledger = Ledger()
    scattered = compress(NAMES[::2])
    for number in range(2100):
        ledger.put(LaunchRecord("run", number, 86400.0 * number / 50, scattered))
    assert len(ledger.launches) == 2000
    ledger.put(LaunchRecord("run", 5000, 86400.0 * 400, scattered))
    assert len(ledger.launches) == 1
