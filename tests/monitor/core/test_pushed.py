"""Pushed streams in the core: in the order in which they were written, dated by who sent them, each line once; silence
is judged only where an agent was heard.
"""

from datetime import UTC, datetime

import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core, ordered
from megatron_monitor.follow.messages import Restarted
from megatron_monitor.pushed import Agent, AgentStates, path_of
from megatron_monitor.receiver.labels import followed
from tests.monitor.core.following import NOW, Following, arguments, step

BUDGET = 60.0
FILE = "/spool/" + path_of("", "gpt", "node0~1")
NODES = tuple(f"node{number}" for number in range(4))


class Pushed(Following):
    """Streams of agents: what each carries lies in a file of the spool. Nothing is held back unless it says so."""

    def __init__(self, *nodes: str) -> None:
        super().__init__("receiver.listen=127.0.0.1:1", owner=None)
        self.notices = dict.fromkeys(nodes, self.now)
        self.silent: dict[str, float] = {}
        self.receiver: float | None = None
        self.set_back: tuple[float, float] | None = None
        """(when the clock of node0 was set, by how many seconds): heartbeats show it 16 s later."""

    def _begun(self) -> Core:
        return Core(followed(load("", list(self.settings)), "/spool"))

    def push(self, *lines: tuple[float, str], node: str = "node0", run: str = "gpt") -> None:
        """(seconds since the beginning, text), as they come now."""
        text = "".join(
            f"{datetime.fromtimestamp(NOW + at, UTC):%Y-%m-%dT%H:%M:%S.%f}000Z <14>1 - {node} log - - - {one}\n"
            for at, line in lines
            for one in line.splitlines()
        )
        self.write("/spool/" + path_of("", run, f"{node}~1"), text)

    def train(self, numbers: range, node: str = "node0", *, pace: float = 10.0) -> None:
        """Steps as they come live, from now on."""
        for number in numbers:
            self.push((self.now - NOW, step(number)), node=node)
            self.wait(pace)

    def wait(self, seconds: float) -> None:
        """Time passes; agents that live are heard each second."""
        for _ in range(int(seconds)):
            self.notices = {node: at if node in self.silent else self.now + 1.0 for node, at in self.notices.items()}
            deaf = {node: at + self.core.wall_offset for node, at in self.silent.items()}
            until = None if self.receiver is None else self.receiver + self.core.wall_offset
            known = self.set_back is not None and self.now - self.set_back[0] >= 16.0
            shifts = {"node0": self.set_back[1]} if self.set_back is not None and known else {}
            behind = self.core.wall_offset
            agents = {node: Agent(0.0, behind=behind, shift=shifts.get(node, 0.0)) for node in self.notices}
            states = AgentStates(deaf, agents, {}, observed_until=until)
            self.core.listen({}, self.now, states)
            super().wait(1)

    def deafen(self, *nodes: str) -> None:
        """Nothing is heard of these agents from now on, and of all others something is."""
        self.silent = dict.fromkeys(nodes, self.now)
        self.wait(1)

    def counted(self, name: str) -> float:
        """A counter of the monitor."""
        return sum(sample.value for sample in self.core.snapshot(self.now).monitor.get(name, ()))

    @property
    def iterations(self) -> float:
        """Of the run."""
        return self.totals()["gpt"]

    @property
    def restarts(self) -> float:
        """Of the run."""
        return self.totals("megatron_restarts_total")["gpt"]


def test_our_clock_is_set_while_the_agents_go_on() -> None:
    """By an hour, and back by less: what they push is dated as before, no hang is told, and a true one is."""
    lab = Pushed("node0")
    lab.push((0.0, arguments()))
    for first, set_by in ((1, 0.0), (40, 2548.0), (80, 2372.0), (120, -3000.0)):
        lab.core.set_clock(set_by)
        lab.train(range(first, first + 40))
    assert lab.reported == []
    lab.wait(600)
    assert {one.incident for one in lab.reported} == {"hang"}


def test_swapped_batches_are_put_in_order() -> None:
    """A batch that comes within two seconds after a later one counts as if it had come before: no restart."""
    lab = Pushed("node0")
    lab.push((0.0, arguments()), *((10.0 * number, step(number)) for number in range(1, 6)))
    lab.now += 90.0
    lab.push(*((10.0 * number, step(number)) for number in range(8, 10)))
    lab.push(*((10.0 * number, step(number)) for number in range(6, 8)))
    lab.wait(3)
    assert (lab.iterations, lab.restarts, lab.counted("megatron_monitor_late_lines_total")) == (9.0, 0.0, 0.0)


def test_what_comes_too_late_is_counted_and_never_folded_backwards() -> None:
    """A batch that comes ten seconds after a later one is left out: it is no restart."""
    lab = Pushed("node0")
    lab.push((0.0, arguments()), *((10.0 * number, step(number)) for number in range(1, 6)))
    lab.now += 90.0
    lab.push(*((10.0 * number, step(number)) for number in range(8, 10)))
    lab.wait(10)
    lab.push(*((10.0 * number, step(number)) for number in range(6, 8)))
    lab.wait(3)
    lab.push((100.0, step(10)))
    lab.wait(20)
    assert (lab.iterations, lab.restarts, lab.counted("megatron_monitor_late_lines_total")) == (8.0, 0.0, 2.0)
    lab.killed()
    assert lab.counted("megatron_monitor_late_lines_total") == 2.0
    assert lab.core.sources[FILE].reader.fed_bytes == len(lab.written[FILE])


def test_a_made_up_run_has_no_series() -> None:
    """Its late lines and duplicates are counted once it is a training."""
    lab = Pushed()
    for at in (10.0, 5.0, 20.0, 20.0):
        lab.push((at, "no training"), run="made up")
        lab.wait(3)
    names = ("megatron_monitor_late_lines_total", "megatron_monitor_duplicate_lines_total")
    assert [lab.counted(name) for name in names] == [0.0, 0.0]
    for at, text in ((40.0, arguments() + step(1)), (50.0, step(2))):
        lab.push((at, text), run="made up")
        lab.wait(3)
    assert [lab.counted(name) for name in names] == [1.0, 1.0]


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("seconds", [6, 9, 14, 3600])
@pytest.mark.parametrize("pace", [1, 3, 10])
def test_an_agent_whose_clock_is_set_back_loses_nothing(pace: int, seconds: int, killed: bool) -> None:
    """Its lines wait until heartbeats have shown it: each counts once, none is a restart, and the pace stays. The
    monitor may be killed meanwhile.
    """
    lab = Pushed("node0")
    lab.push((0.0, arguments()))
    for number in range(1, 121):
        lab.push((lab.now - NOW - (seconds if number > 60 else 0), step(number)))
        lab.wait(pace)
        if number == 60:
            lab.set_back = lab.now, float(seconds)
        if killed and number in (64, 80):
            lab.killed()
    lab.wait(3)
    assert (lab.iterations, lab.restarts, lab.counted("megatron_monitor_late_lines_total")) == (120.0, 0.0, 0.0)
    assert lab.reported == []


@pytest.mark.parametrize("stopped", [15, 30, 120])
def test_a_stopped_monitor_has_heard_no_heartbeat(stopped: int) -> None:
    """The clock of an agent is set back, and the monitor is stopped (SIGSTOP) before heartbeats have shown it."""
    lab, steps = Pushed("node0"), iter(range(1, 1000))
    lab.push((0.0, arguments()))
    for _ in range(60):
        lab.push((lab.now - NOW, step(next(steps))))
        lab.wait(1)
    lab.set_back = lab.now, 4516.0
    for _ in range(4):
        lab.push((lab.now - NOW - 4516.0, step(next(steps))))
        lab.wait(1)
    lines = [(lab.now + second - NOW - 4516.0, step(next(steps))) for second in range(stopped)]
    lab.now += stopped
    lab.core.tick(lab.now)
    lab.push(*lines)
    for _ in range(40):
        lab.push((lab.now - NOW - 4516.0, step(next(steps))))
        lab.wait(1)
    lab.wait(3)
    assert (lab.iterations, lab.restarts) == (104.0 + stopped, 0.0)
    assert lab.counted("megatron_monitor_late_lines_total") == 0.0


@pytest.mark.parametrize("nodes", [(), ("node0",)])
@pytest.mark.parametrize("seconds", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("pace", [1, 2, 3])
def test_a_small_step_of_the_clock_loses_nothing(pace: int, seconds: int, nodes: tuple[str, ...]) -> None:
    """Heartbeats do not show it, and some lines seem to have been written before others: the next line does."""
    lab = Pushed(*nodes)
    lab.push((0.0, arguments()))
    for number in range(1, 121):
        lab.push((lab.now - NOW - (seconds if number > 60 else 0), step(number)))
        lab.wait(pace)
    lab.wait(3)
    assert (lab.iterations, lab.restarts, lab.counted("megatron_monitor_late_lines_total")) == (120.0, 0.0, 0.0)
    assert lab.reported == []


def test_the_lines_that_wait_are_bounded_over_all_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """Late lines wait for 20 s: those of many streams at once would fill the memory, so they wait for less. A stream
    beside them that waits for little loses nothing.
    """
    monkeypatch.setattr(ordered, "_MAX_MEMORY", 1 << 20)
    lab = Pushed(*NODES)
    for number in range(5):
        lab.push((100.0, step(1)), run=f"gpt{number}")
    lab.wait(3)
    lab.push((50.0, step(2)), run="gpt0")
    for number in range(1, 5):
        lab.push(*((50.0 + at / 1e3, "x" * 1000) for at in range(1000)), run=f"gpt{number}")
    lab.wait(8)
    waiting = {source.log.name: source.ordered.size for source in lab.core.sources.values() if source.ordered}
    assert sum(waiting.values()) < 1 << 20
    assert waiting["gpt0"] > 0


def test_a_clock_that_is_set_back_without_heartbeats() -> None:
    """Nothing is lost if only late lines come for ten seconds. A late batch is left out when a later line comes."""
    lab = Pushed()
    lab.push((0.0, arguments()))
    for number in range(1, 61):
        lab.push((lab.now - NOW - (3600.0 if number > 30 else 0.0), step(number)))
        lab.wait(5)
    lab.wait(3)
    assert (lab.iterations, lab.restarts, lab.reported) == (60.0, 0.0, [])
    lab.push((lab.now - NOW - 3600.0 - 60.0, step(61)))
    lab.wait(5)
    lab.push((lab.now - NOW - 3600.0, step(62)))
    lab.wait(3)
    assert (lab.restarts, lab.counted("megatron_monitor_late_lines_total")) == (0.0, 1.0)


@pytest.mark.parametrize("nodes", [(), ("node0",)])
def test_a_line_that_is_dated_ahead_silences_nothing(nodes: tuple[str, ...]) -> None:
    """By less than five minutes, so that the receiver does not redate it: no line after it is left out."""
    lab = Pushed(*nodes)
    lab.push((0.0, arguments()))
    for number in range(1, 121):
        lab.push((lab.now - NOW + (240.0 if number == 30 else 0.0), step(number)))
        lab.wait(1)
    lab.wait(30)
    assert (lab.counted("megatron_monitor_late_lines_total"), lab.firing("hang")) == (0.0, [])
    assert lab.core.runs["gpt"].state.attempt.last_iteration == 120


@pytest.mark.parametrize("nodes", [(), ("node0",)])
def test_an_agent_that_sends_old_lines_again_restarts_nothing(nodes: tuple[str, ...]) -> None:
    """It has lost its positions and sends the file from its beginning."""
    lab, lines = Pushed(*nodes), [(0.0, arguments())]
    lab.push(*lines)
    for number in range(1, 101):
        lines.append((lab.now - NOW, step(number)))
        lab.push(lines[-1])
        lab.wait(5)
    for again in range(0, 100, 5):
        lab.push(*lines[again : again + 5])
        lab.wait(1)
    for number in range(101, 121):
        lab.push((lab.now - NOW, step(number)))
        lab.wait(5)
    lab.wait(30)
    assert (lab.iterations, lab.restarts, lab.firing("hang")) == (120.0, 0.0, [])


def test_a_batch_that_never_came_is_a_note() -> None:
    """How many iterations are missing stands on the page; a restart, and lines of every tenth iteration, miss none."""
    lab = Pushed("node0")
    lab.push((0.0, arguments()), *((10.0 * number, step(number)) for number in range(1, 6)))
    lab.now += 150.0
    lab.push(*((10.0 * number, step(number)) for number in range(9, 13)))
    lab.wait(3)
    (stream,) = lab.pages()["gpt"]["identity"]["streams"]  # type: ignore[index]
    assert stream["why"] == "labels; 3 iterations did not arrive"
    assert lab.iterations == 9.0
    other = Pushed("node0")
    lines = [arguments(), *map(step, range(1, 9)), arguments(), *map(step, range(5, 9))]
    for line in [*lines, arguments(), *map(step, range(10, 100, 10))]:
        other.push((other.now - NOW, line))
        other.wait(3)
    assert [one["why"] for one in other.pages()["gpt"]["identity"]["streams"]] == ["labels"]  # type: ignore[index]


def test_kill_while_lines_wait() -> None:
    """What waits is saved with the offset: after kill -9 it waits on, and what lies before it may still come."""
    lab = Pushed("node0")
    lab.push((0.0, arguments()), *((10.0 * number, step(number)) for number in range(1, 6)))
    lab.now += 90.0
    lab.wait(3)
    lab.push(*((10.0 * number, step(number)) for number in range(8, 10)))
    lab.wait(1)
    assert lab.iterations == 5.0
    for _ in range(3):
        lab.killed()
    lab.wait(1)
    lab.push(*((10.0 * number, step(number)) for number in range(6, 8)))
    lab.wait(3)
    lab.killed()
    assert (lab.iterations, lab.restarts, lab.counted("megatron_monitor_late_lines_total")) == (9.0, 0.0, 0.0)


def test_lines_are_dated_by_who_sent_them() -> None:
    """After five minutes without its agent the steps come at once, and are dated as they were written."""
    lab = Pushed("node0")
    lab.train(range(1, 30))
    lab.deafen("node0")
    began = lab.now - NOW
    lab.wait(299)
    lab.push(*((began + 10.0 * number, step(29 + number)) for number in range(30)))
    lab.silent = {}
    lab.wait(5)
    page = lab.pages()["gpt"]
    assert abs(page["progress_at"] - (NOW + began + 290.0)) < 1.0  # type: ignore[operator]
    assert lab.firing("hang") == []
    assert lab.firing("source_lost") == ["gpt"]  # and it is over
    assert lab.core.runs["gpt"].state.unreadable == {}


def test_half_of_a_backlog_is_no_hang() -> None:
    """The first batch after an outage ends in a step of minutes ago, and the next one is on its way. One that stays
    away is told within the budget from then on.
    """
    lab = Pushed("node0")
    lab.train(range(1, 30))
    lab.deafen("node0")
    began = lab.now - NOW
    lab.wait(299)
    lab.silent = {}
    lab.push(*((began + 10.0 * number, step(29 + number)) for number in range(6)))
    lab.wait(BUDGET - 10)
    assert lab.firing("hang") == []
    lab.wait(20)
    assert lab.firing("hang") == ["gpt"]


def test_a_sender_whose_clock_is_ten_minutes_slow() -> None:
    """Its training is no hang, and told within the budget and a few seconds when it hangs."""
    lab = Pushed("node0")
    for number in range(1, 30):
        lab.push((lab.now - NOW - 600.0, step(number)))
        lab.wait(10)
    assert lab.firing("hang") == []
    lab.wait(BUDGET - 12)
    assert lab.firing("hang") == []
    lab.wait(10)
    assert lab.firing("hang") == ["gpt"]


def test_a_helper_whose_clock_is_slow_hides_no_hang() -> None:
    """What it says is no progress, and its delay is none of those who tell the steps."""
    lab = Pushed("node0", "node1")
    lab.push((-600.0, "loaded 5 modules"), node="node1")
    lab.train(range(1, 30))
    for _ in range(7):
        lab.push((lab.now - NOW - 600.0, "the data loader is idle"), node="node1")
        lab.wait(10)
    assert lab.firing("hang") == ["gpt"]


def test_training_stopped_under_a_living_agent() -> None:
    """The hang is told within the budget; nothing else is."""
    lab = Pushed("node0")
    lab.train(range(1, 30))
    lab.wait(BUDGET - 10 - 1)
    assert lab.firing("hang") == []
    lab.wait(4)
    assert lab.firing("hang") == ["gpt"]
    assert {one.incident for one in lab.reported} == {"hang"}
    assert "heartbeat" not in next(one.summary for one in lab.reported if not one.display_only)


def test_a_dead_agent_is_no_hang() -> None:
    """Nobody knows what the training does: that its agent is deaf is told after a minute, a hang never; a training that
    has stopped meanwhile is told within the budget after the agent's return.
    """
    lab = Pushed("node0")
    lab.train(range(1, 30))
    lab.deafen("node0")
    lab.wait(58)
    assert lab.firing("source_lost") == []
    lab.wait(1000)
    assert (lab.firing("source_lost"), lab.firing("hang")) == (["gpt"], [])
    lab.silent = {}
    lab.wait(BUDGET - 12)
    assert lab.firing("hang") == []
    lab.wait(15)
    assert lab.firing("hang") == ["gpt"]


def test_a_receiver_that_stands_hears_no_agent() -> None:
    """Its report is older than the agent's silence: 51 s of it were seen, and what followed nobody knows."""
    lab = Pushed("node0")
    lab.train(range(1, 30))
    since = lab.now + lab.core.wall_offset
    for seconds in range(200):
        until = since + 51.0 if seconds > 56 else None
        lab.core.listen({}, lab.now, AgentStates({"node0": since}, {"node0": Agent(0.0)}, {}, observed_until=until))
        Following.wait(lab, 1)
    assert lab.firing("source_lost") == []


def test_the_reason_is_that_the_receiver_refuses_the_lines() -> None:
    """An agent that reports so is alive; if it then dies, the reason is another."""
    lab, reasons = Pushed("node0"), list[str]()
    lab.train(range(1, 30))
    since = lab.now + lab.core.wall_offset
    for refused in (("node0",), ()):
        for _ in range(100):
            lab.core.listen({}, lab.now, AgentStates({"node0": since}, {"node0": Agent(0.0)}, {}, refused=refused))
            Following.wait(lab, 1)
        reasons += lab.core.runs["gpt"].state.unreadable.values()
    assert reasons == [
        "the receiver refuses the lines of its agent node0",
        "its agent node0 sends neither lines nor heartbeats",
    ]
    assert lab.firing("hang") == []


def test_a_dead_receiver_is_no_hang() -> None:
    """Of agents without heartbeat too: their streams are unobserved until it is back; files are judged meanwhile."""
    lab = Pushed()
    lab.write("/logs/b.log", arguments() + "".join(map(step, range(1, 30))))
    lab.train(range(1, 30))
    lab.write("/logs/b.log", step(30))
    lab.receiver = lab.now
    lab.wait(1000)
    assert {one.run for one in lab.reported if one.incident == "hang"} == {"b"}
    lab.receiver = None
    lab.wait(BUDGET - 12)
    assert "gpt" not in lab.firing("hang")
    lab.wait(15)
    assert "gpt" in lab.firing("hang")


def test_a_tenth_of_the_places_is_for_files() -> None:
    """Runs that are pushed, however many, leave room for one that is followed."""
    lab = Pushed("node0")
    lab.settings = ("receiver.listen=127.0.0.1:1", "max_runs=10", "runs=[{paths: [/logs/*.log]}]")
    lab.core = lab._begun()
    for number in range(10):
        lab.push((0.0, arguments()), (1.0, step(1)), run=f"gpt{number}")
        lab.wait(3)
    lab.write("/logs/own.log", arguments() + step(1) + step(2))
    assert len(lab.core.runs) == 10
    assert "own" in lab.core.runs


def test_one_dead_agent_of_many() -> None:
    """One that never carried a step makes nobody blind: the hang is told. One that carried all of them does."""
    for dead, reported in (("node3", ["gpt"]), ("node0", [])):
        lab = Pushed(*NODES)
        for node in NODES:
            lab.push((0.0, "loaded 5 modules"), node=node)
        lab.train(range(1, 30))
        lab.deafen(dead)
        lab.wait(200)
        assert lab.firing("hang") == reported, dead
        assert lab.firing("source_lost") == ["gpt"]


def test_a_node_that_dies_with_its_agent() -> None:
    """What the other nodes say of the end is told: a hang alone needs the node that tells the steps."""
    lab = Pushed(*NODES)
    for node in NODES:
        lab.push((0.0, "loaded 5 modules"), node=node)
    lab.train(range(1, 30))
    lab.deafen("node0")
    lab.wait(20)
    lab.push((lab.now - NOW, "torch.distributed.DistBackendError: NCCL error: remote process exited"), node="node1")
    lab.push((lab.now - NOW + 1, "srun: error: node1: task 1: Exited with exit code 1"), node="node1")
    lab.wait(60)
    assert (lab.firing("crash"), lab.firing("hang")) == (["gpt"], [])


def test_an_agent_that_is_deaf_when_the_monitor_starts() -> None:
    """It died while nobody looked: no hang is told of its streams."""
    lab = Pushed("node0")
    lab.train(range(1, 30))
    lab.now += 120.0
    lab.silent = {"node0": lab.now - 120.0}
    lab.killed()
    lab.wait(200)
    assert lab.firing("hang") == []
    assert lab.firing("source_lost") == ["gpt"]


def test_agents_without_heartbeats() -> None:
    """They are judged as a file, and the message says what else it may be."""
    lab = Pushed()
    lab.train(range(1, 30))
    lab.wait(BUDGET)
    (reported,) = [one for one in lab.reported if not one.display_only]
    assert reported.incident == "hang"
    assert "send no heartbeat" in reported.summary


def test_the_node_and_the_text_are_those_of_the_line() -> None:
    """A crash names the node of the agent's label, and shows the line as it was written."""
    lab = Pushed("node0")
    lab.train(range(1, 5))
    lab.push((lab.now - NOW, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"))
    lab.push((lab.now - NOW + 1, "srun: error: node0: task 0: Exited with exit code 1"))
    lab.wait(60)
    (reported,) = [one for one in lab.reported if one.incident == "crash" and one.status == "firing"]
    assert "torch.OutOfMemoryError" in reported.summary
    assert "<14>1" not in reported.summary


def test_a_stream_that_goes_on_in_another_file() -> None:
    """What waits when the spool begins a file anew counts, and the next file is read from its beginning."""
    lab = Pushed("node0")
    lab.train(range(1, 10))
    lab.push((lab.now - NOW, step(10)))
    path = FILE
    lab.core.handle(Restarted(path, "rotated", "", at=lab.now), lab.now)
    lab.written[path] = b""
    lab.wait(10)
    lab.train(range(11, 15))
    lab.killed()
    lab.wait(3)
    assert (lab.iterations, lab.restarts) == (14.0, 0.0)


def test_what_agents_keep_while_nobody_takes_it_is_no_silence() -> None:
    """The daemon is away for 15 s: of a file that others write that is silence, here the lines may wait elsewhere."""
    logs = Pushed("node0")
    logs.train(range(1, 13))
    logs.wait(35)
    logs.killed(15.0)
    logs.wait(10)
    assert [one for one in logs.reported if not one.display_only] == []
    logs.wait(15)
    assert [(one.incident, one.status) for one in logs.reported if not one.display_only] == [("hang", "firing")]
