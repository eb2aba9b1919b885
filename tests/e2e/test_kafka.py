"""Members as processes on a real broker: kill -9 of one, another goes on."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from megatron_monitor.config.inputs import KafkaSettings
from megatron_monitor.kafka.state import StateRecord
from tests.kafka_broker import broker, loki, produce
from tests.lines import line
from tests.monitor.notifiers.receiver import Receiver
from tests.programs import TETHERED, free_port, get, serving, slack, wait

pytestmark = pytest.mark.e2e
PARTITIONS = 4
RUNS = [f"run{number}" for number in range(8)]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a broker with a topic for each test."""
    with broker(**dict.fromkeys(("logs", "unkeyed", "fenced", "other.fenced"), PARTITIONS)) as found:
        yield found


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Of notifications."""
    with serving(Receiver()) as running:
        yield running


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Callable[..., tuple[str, subprocess.Popen[bytes]]]]:
    """Starts members; gives the address of the page and the process."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(address: str, topic: str, told: str) -> tuple[str, subprocess.Popen[bytes]]:
        page = f"127.0.0.1:{free_port()}"
        kafka = {"bootstrap": [address], "topic": topic, "group": topic}
        settings = [
            f"kafka={json.dumps(kafka)}",
            f"state_dir={tmp_path / page.rpartition(':')[2]}", "shutdown_grace_period=0s",
            f"receiver.listen=127.0.0.1:{free_port()}",  # a topic and a receiver do not disturb each other
            f"notifiers={json.dumps([{'type': 'webhook', 'name': 'told', 'url': told}])}",
        ]  # fmt: skip
        options = [part for setting in settings for part in ("--set", setting)]
        with (tmp_path / "members.log").open("ab") as log:
            running.append(
                subprocess.Popen(
                    [*TETHERED, sys.executable, "-m", "megatron_monitor", "run", "--listen", page, *options], stderr=log
                )
            )
        return page, running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def series(page: str, name: str) -> dict[str, float]:
    """By the metric's last label, of a member; nothing of one that does not answer."""
    try:
        text = get(f"http://{page}/metrics")
    except OSError:
        return {}
    found = re.findall(rf'^{name}\{{(?:.*,)?\w+="([^"]*)"\}} (\S+)$', text, re.MULTILINE)
    return {label: float(value) for label, value in found}


def test_one_member_is_killed_and_the_other_goes_on(
    address: str, member: Callable[..., tuple[str, subprocess.Popen[bytes]]], receiver: Receiver
) -> None:
    """Every run is judged by one of the two; then by the one that is left, within 15 s; each iteration counts once and
    each event of crashes is told once.
    """
    first, killed = member(address, "logs", receiver.url)
    second, _ = member(address, "logs", receiver.url)
    pages = (first, second)
    judging = "megatron_monitor_kafka_partitions"
    wait(lambda: [series(page, judging).get("judging") for page in pages] == [2.0, 2.0], 40.0, "two partitions each")

    def write(step: int, text: str = "") -> None:
        at = time.time_ns()
        texts = [(at, line(step, seconds=0.5).rstrip("\n")), *([(at + 1, text)] if text else [])]
        produce(address, "logs", [(run, loki({"run": run}, texts)) for run in RUNS])

    for step in range(1, 21):
        write(step)
    wait(lambda: all(series(page, "megatron_iteration") for page in pages), 20.0, "both have runs")
    before = series(first, "megatron_iteration")
    killed.kill()
    write(21, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB")

    def gone_on() -> bool:
        found = series(second, "megatron_iteration")
        return all(found.get(run) == 21 for run in before)

    seconds = wait(gone_on, 30.0, "taken over")
    assert 0 < len(before) < len(RUNS)
    assert seconds < slack(15.0)
    wait(lambda: series(second, "megatron_iterations_total") == dict.fromkeys(RUNS, 21.0), 20.0, "each once")

    def crashed() -> dict[str, str]:
        """Run -> the event of its crash."""
        text = get(f"http://{second}/metrics")
        found = re.findall(r'^megatron_incident\{(.*incident="crash".*)\} 1(?:\.0)?$', text, re.MULTILINE)
        labels = [dict(re.findall(r'(\w+)="([^"]*)"', one)) for one in found]
        return {one["run"]: one["event"] for one in labels}

    def told_of() -> list[str]:
        return sorted(
            one["event"] for one in receiver.bodies if (one["incident"], one["status"]) == ("crash", "firing")
        )

    wait(lambda: len(crashed()) == len(RUNS), 30.0, lambda: f"crashed: {crashed()}")
    events = sorted(set(crashed().values()))  # crashes within a minute of one another are one event
    wait(lambda: len(told_of()) >= len(events), 30.0, lambda: f"told: {told_of()} of {events}")
    assert told_of() == events
    ids = [message["id"] for message in receiver.bodies]
    assert len(ids) == len(set(ids))


def test_a_topic_without_keys_is_told(address: str, member: Callable[..., tuple[str, subprocess.Popen[bytes]]]) -> None:
    """With a sentence on the page; the member stays up."""
    produce(address, "unkeyed", [(None, line(step).encode()) for step in range(20)])
    page, _ = member(address, "unkeyed", "http://127.0.0.1:9/")
    wait(lambda: series(page, "megatron_monitor_kafka_records_total").get("unkeyed", 0.0) > 0, 40.0, "left out")
    assert "have no keys" in get(f"http://{page}/")


def test_who_had_the_partition_before_writes_nothing_any_more(address: str) -> None:
    """And the newest record is found behind what other transactions left."""
    settings = KafkaSettings(bootstrap=(address,), topic="fenced", group="fenced")
    old, new = StateRecord(settings, 1), StateRecord(settings, 1)
    assert old.open() == b""
    assert old.write(b"one")
    assert new.open() == b"one"
    assert not old.write(b"a zombie's")
    assert old.lost
    for number in range(30):
        assert new.write(b"%d" % number)
    assert StateRecord(settings, 1).open() == b"29"
    assert StateRecord(settings, 2).open() == b""


def test_two_topics_of_one_group_have_their_own_states(address: str) -> None:
    """In one state topic; nor does a group whose name ends like a topic fence another one's member."""
    names = (("group", "fenced"), ("group", "other.fenced"), ("group.other", "fenced"))
    kinds = [KafkaSettings(bootstrap=(address,), topic=topic, group=group) for group, topic in names]
    records = [StateRecord(settings, 1) for settings in kinds]
    assert [record.open() for record in records] == [b"", b"", b""]
    assert all(record.write(b"%d" % number) for number, record in enumerate(records))
    assert [StateRecord(settings, 1).open() for settings in kinds] == [b"0", b"1", b"2"]
