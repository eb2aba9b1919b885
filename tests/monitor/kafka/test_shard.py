"""A partition, record by record: what becomes whose line, what is refused, and what the next owner reads again."""

from collections.abc import Iterator

import pytest

from megatron_monitor.kafka import shard as module
from megatron_monitor.receiver.messages import Push
from megatron_monitor.snapshot import MetricSample, MonitorCounts, RunSnapshot, Snapshot, merged
from tests.kafka_broker import loki
from tests.kafka_partition import Partition, Record
from tests.lines import line
from tests.programs import wait


@pytest.fixture
def partition() -> Iterator[Partition]:
    """One with a member, which is closed at the end."""
    one = Partition()
    yield one
    one.shard.close(save=False)


def outcomes(partition: Partition) -> dict[str, float]:
    """Outcome -> records."""
    found = partition.shard.core.counts.values["megatron_monitor_kafka_records_total"]
    return {outcome: count for (outcome,), count in found.items()}


def test_a_member_goes_on_where_the_one_before_had_saved(partition: Partition) -> None:
    """Lines that were handled and not saved are read again and count once; so do records that were produced twice."""
    for step in range(1, 21):
        partition.write("tr11", line(step, seconds=0.5), again=step % 3 == 0)
        partition.turn()
    partition.turns(8)
    wait(lambda: b"tr11" in partition.record.data, 10.0, "saved")
    kept = partition.record.data
    partition.train(21, 31)
    partition.turns(8)
    assert partition.iterations("tr11") == 30
    partition.shard.close(save=False)
    partition.record = Record(kept)  # kill -9: the later ones came nowhere
    partition.take_over()
    assert 0 < partition.begun_at < len(partition.records)
    partition.turns(8)
    assert partition.iterations("tr11") == 30
    assert partition.shard.core.runs["tr11"].state.attempt.number == 0


def test_an_undecided_stream_waits_on_after_a_takeover(partition: Partition) -> None:
    """Its waiting lines are saved: no record is read again."""
    partition.train(1, 12)
    partition.turns(6)
    for step in range(1, 5):  # another pod of that name begins from 1: its next attempt, or another training
        partition.write("tr11", line(step, seconds=0.5, loss=5.0), task="1")
        partition.turn()
    partition.turns(6)
    assert partition.iterations("tr11") == 11
    partition.shard.close(save=True)
    partition.take_over()
    assert partition.begun_at == 15
    for step in range(12, 16):  # both compute
        partition.write("tr11", line(step, seconds=0.5))
        partition.write("tr11", line(step - 7, seconds=0.5, loss=5.0), task="1")
        partition.turn()
    partition.turns(8)
    assert sorted(run.state.iterations_total for run in partition.shard.core.runs.values()) == [8, 15]


def test_records_without_keys_are_left_out(partition: Partition) -> None:
    """With a sentence where none has one; those that have are handled."""
    partition.write("tr11", line(1), key=None)
    partition.write("tr12", line(1))
    partition.turns(6)
    assert "have no keys" in partition.shard.refused[""]
    assert (partition.iterations("tr11"), partition.iterations("tr12")) == (None, 1)


def test_a_wrong_key_makes_its_run_unobserved_and_no_other(partition: Partition) -> None:
    """Nobody can tell whether a run is silent whose records lie in several partitions; the others are judged on."""
    for step in range(1, 21):
        for run in ("tr11", "tr12", "tr13"):
            partition.write(run, line(step, seconds=0.5))
        partition.turn()
    partition.write("tr11", line(21, seconds=0.5), key=b"pod-1", task="1")
    for step in range(21, 221):
        partition.write("tr11", line(step, seconds=0.5))
        partition.write("tr12", line(step, seconds=0.5))
        partition.turn()
    runs = partition.shard.core.runs
    assert "have several keys, b'tr11' and b'pod-1'" in partition.shard.refused["tr11"]
    assert "hang" not in runs["tr11"].book.open
    assert partition.iterations("tr11") == 20
    assert partition.iterations("tr12") >= 215
    assert "hang" in runs["tr13"].book.open
    assert outcomes(partition)["refused"] == 201


def test_little_is_kept_of_long_keys_and_labels(partition: Partition) -> None:
    """A million bytes of a key for each run, or all labels of thousands of streams, would fill the memory."""
    key = b"k" * 500_000
    partition.append(key, b"text")
    partition.append(b"tr11", loki({"run": "tr11", **{f"{n:0200}": "x" * 256 for n in range(60)}}, [(1, "text")]))
    partition.turn()
    shard = partition.shard
    assert all(len(run) + len(known) < 1000 for run, known in shard._keys.items())
    assert len(shard._keys) == 2
    assert shard._cached_origin.cache_info().currsize == 1
    for last in (b"a", b"b"):
        partition.write("tr12", line(1), key=key + last)
        partition.turn()
    assert "tr12" in shard.refused


def test_made_up_runs_are_forgotten_before_a_training(partition: Partition, monkeypatch: pytest.MonkeyPatch) -> None:
    """So many of them that the state would be too large for a record; the training is judged as before."""
    monkeypatch.setattr(module, "_MAX_STREAMS", 20)
    for step in range(1, 41):
        partition.write("tr11", line(step))
        for number in range(3):
            partition.write(f"made-up-{step}-{number}", "no training")
            partition.write(f"keys-{step}-{number}", "no training", key=b"another")
        partition.turn()
    shard = partition.shard
    assert len(shard._place.written) <= 20
    assert len(shard.core.sources) <= 20
    assert len(shard._keys) <= 20
    partition.turns(200)
    assert partition.iterations("tr11") == 40
    assert "hang" in shard.core.runs["tr11"].book.open


@pytest.mark.parametrize(
    "value",
    [
        b'{"message": "x", "time": "9999-12-31T23:59:59-23:00"}',
        b'{"message": "x", "timestamp": 9999999999}',
        loki({"run": "tr11"}, [(2**62 * 10**6, "x")]),
        b'{"streams": ' + b"[" * 100_000,
        b"\n" + b"\x0a\x00" * 1_000_000,
    ],
    ids=["the last year", "two centuries", "milliseconds", "nested", "many fields"],
)
def test_no_record_ends_a_member_nor_moves_its_clock(partition: Partition, value: bytes) -> None:
    """Whatever it holds, and whenever it says that it was written."""
    partition.write("tr11", line(1))
    for at in (0, 2**62 * 10**6, -1):
        partition.records.append((b"tr11", value, at))
    partition.train(2, 6)
    partition.turns(8)
    assert partition.iterations("tr11") == 5
    partition.shard.close(save=True)


def test_a_bug_in_the_reading_of_a_record_costs_that_record(
    partition: Partition, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is skipped, counted and named; a record of an impossible time counts, dated by its arrival."""
    read = module.push_of

    def fail(value: bytes, headers: dict[str, str], at: int) -> Push:
        if value == b"bug":
            raise RecursionError
        return read(value, headers, at)

    monkeypatch.setattr(module, "push_of", fail)
    partition.append(b"tr11", b"bug")
    partition.records.append((b"tr11", line(1).encode(), 2**62 * 10**6))
    partition.write("tr11", line(2))
    partition.turns(8)
    assert outcomes(partition) == {"undecodable": 1, "taken": 2}
    partition.shard.close(save=True)


def test_what_cannot_be_read_is_left_out_and_counted(partition: Partition) -> None:
    """A record without a key among others, one of bytes, an empty one, one that names no run: the rest goes on."""
    partition.write("tr11", line(1))
    partition.write("tr11", line(2), key=None)
    for key, value in ((b"tr11", b"\0\0\0\0\1avro"), (b"tr11", None), (b"\xff\x00digest", b"whose?")):
        partition.append(key, value)
    for step in range(2, 6):
        partition.write("tr11", line(step))
    partition.turns(10)
    assert outcomes(partition) == {"taken": 5, "unkeyed": 1, "undecodable": 1, "empty": 1, "unnamed": 1}
    assert (partition.iterations("tr11"), partition.shard.refused) == (5, {})
    assert partition.shard.unnamed == "no labels"
    partition.shard.close(save=True)
    partition.take_over()
    partition.write("tr11", line(7), key=None)  # the next member knows that the topic has keys
    partition.turns(4)
    assert partition.shard.refused == {}


def test_plain_lines_are_of_the_run_that_their_key_names(partition: Partition) -> None:
    """As rsyslog and syslog-ng write them."""
    for step in range(1, 6):
        partition.append(b"tr11", line(step).encode())
    partition.turns(10)
    assert partition.iterations("tr11") == 5


def test_silence_counts_only_while_the_brokers_are_heard(partition: Partition) -> None:
    """A training that stops is told; while no broker answers, or records wait, nothing is."""
    partition.train(1, 21)
    reported = partition.shard.core.runs["tr11"].book.open
    partition.turns(300, notices=False)
    assert "hang" not in reported
    partition.turns(30)
    assert "hang" not in reported  # what nobody heard is no silence
    partition.turns(200)
    assert "hang" in reported


def test_a_member_that_was_stopped_sends_nothing(partition: Partition) -> None:
    """Until the loop has turned again, and unless the partition was lost."""
    may_send = partition.shard.dispatcher.deliveries.may_send
    partition.turn(0.0)
    assert may_send()
    partition.clock.advance(6.0)
    assert not may_send()
    partition.turn(0.0)
    assert may_send()
    partition.record.lost = True
    assert not may_send()


def test_what_is_not_saved_is_not_sent(partition: Partition) -> None:
    """However long the brokers are away."""
    assert partition.shard.core.outbox.patience == float("inf")


def test_a_topic_that_was_made_anew_is_read_from_its_beginning(partition: Partition) -> None:
    """What is known of its runs is gone on with."""
    partition.train(1, 6)
    partition.turns(6)
    partition.shard.close(save=True)
    partition.records.clear()
    partition.take_over()
    assert partition.begun_at == 0
    partition.train(6, 9)
    partition.turns(6)
    assert partition.iterations("tr11") == 8


def test_what_a_process_shows_of_several_cores() -> None:
    """Counters add up, gauges of the process are its largest; a run that two of them have is shown once."""
    counts = MonitorCounts()
    counts.add("lines_total", "read", by=3.0)
    counts.set("runs", 2.0)
    counts.set("ready", 1.0)
    run = RunSnapshot("tr11", {}, {"incidents": [{"incident": "hang"}]})
    one = Snapshot(at=1.0, runs=(run,), monitor=counts.frozen(), ready=True, behind_seconds=2.0)
    shown = merged([one, one, Snapshot(at=0.0, ready=False)])
    assert [found.run for found in shown.runs] == ["tr11"]
    assert shown.monitor["megatron_monitor_lines_total"] == (MetricSample(("read",), 6.0),)
    assert shown.monitor["megatron_monitor_runs"][0].value == 4.0
    assert shown.monitor["megatron_monitor_ready"][0].value == 1.0
    assert (shown.ready, shown.behind_seconds, len(shown.incidents)) == (False, 2.0, 1)
