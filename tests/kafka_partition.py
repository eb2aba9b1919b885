"""A partition of a topic, kept here: its records, what members have written of it, and who has it."""

from megatron_monitor.config import load
from megatron_monitor.kafka.shard import Shard
from megatron_monitor.kafka.state import StateRecord
from megatron_monitor.store import Parts
from tests.clock import ManualClock
from tests.kafka_broker import loki
from tests.lines import line
from tests.programs import wait

CONFIG = load("kafka: {bootstrap: ['b:1'], topic: logs}\ndetectors: {hang: {minimum: 60s}}")


class Record:
    """The state of a partition, kept here."""

    partitions, lost, trouble = 4, False, ""

    def __init__(self, data: bytes = b"", end: int = 0) -> None:
        self.data, self.end = data, end
        self.parts: Parts = {}

    def save(self, parts: Parts) -> bool:
        """As that of the brokers."""
        return StateRecord.save(self, parts)  # type: ignore[arg-type]

    def open(self) -> bytes:
        """What was written last."""
        return self.data

    def write(self, data: bytes) -> bool:
        """Kept, unless another one has the partition."""
        self.data = self.data if self.lost else data
        return not self.lost


class Partition:
    """A log of records, and who has it."""

    def __init__(self) -> None:
        self.clock = ManualClock(wall=1_800_000_000.0)
        self.record = Record()
        self.records: list[tuple[bytes | None, bytes | None, int]] = []
        """(key, value, when it was written, Unix nanoseconds)"""
        self.shard = self.take_over()

    def take_over(self) -> Shard:
        """Another member, which knows what was written."""
        self.record = Record(self.record.data, len(self.records))
        self.shard = Shard(
            CONFIG, 0, self.record, self.clock, lambda: None, lambda _: {}  # type: ignore[arg-type]
        )  # fmt: skip
        wait(lambda: not self.shard.restore_when_read() and self.shard.open, 10.0, "opened")
        self.begun_at = self.shard.next
        return self.shard

    def write(self, run: str, *texts: str, key: bytes | None = b"", task: str = "0", again: bool = False) -> None:
        """A record of that run, now."""
        lines = [(self.now + number, text) for number, text in enumerate(texts)]
        for _ in range(1 + again):
            self.append(run.encode() if key == b"" else key, loki({"run": run, "filename": f"/logs/{task}.out"}, lines))

    def append(self, key: bytes | None, value: bytes | None) -> None:
        """Any record, now."""
        self.records.append((key, value, self.now))

    @property
    def now(self) -> int:
        """Unix nanoseconds."""
        return round(self.clock.wall() * 1e9)

    def turn(self, seconds: float = 0.5, *, notices: bool = True) -> None:
        """Read to the end, then some time passes."""
        for offset, (key, value, at) in enumerate(self.records):
            self.shard.handle_record(offset, key, value, {}, at)
        self.clock.advance(0.01)
        if notices:
            self.shard.contact_at = self.clock.monotonic()
        self.shard.turn()
        self.clock.advance(seconds)

    def turns(self, count: int, *, notices: bool = True) -> None:
        """Several."""
        for _ in range(count):
            self.turn(notices=notices)

    def train(self, first: int, last: int, run: str = "tr11", seconds: float = 0.5) -> None:
        """These steps, `last` not among them, in as many records, each followed by a turn."""
        for step in range(first, last):
            self.write(run, line(step, seconds=seconds))
            self.turn(seconds - 0.01)

    def iterations(self, run: str) -> int | None:
        """How many counted."""
        found = self.shard.core.runs.get(run)
        return None if found is None else found.state.iterations_total
