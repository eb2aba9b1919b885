"""Every number of every iteration line of the real logs, against a reader that shares nothing with ours."""

import re

import pytest

from megatron_monitor.parsers.events import IterationLogged, to_fields
from megatron_monitor.parsers.reader import SourceReader
from tests.conftest import REAL_LOGS

# Label as printed -> (attribute, what one printed unit is in ours)
_LABELS = {
    r"consumed samples": ("consumed_samples", 1),
    r"consumed tokens": ("consumed_tokens", 1),
    r"elapsed time per iteration \(ms\)": ("seconds_per_iteration", 1e-3),
    r"elapsed time per iteration \(s\)": ("seconds_per_iteration", 1),
    r"learning rate": ("learning_rate", 1),
    r"global batch size": ("global_batch_size", 1),
    r"lm[ _-]loss": ("lm_loss", 1),
    r"loss scale": ("loss_scale", 1),
    r"grad norm": ("grad_norm", 1),
    r"number of skipped iterations": ("skipped_iterations", 1),
    r"number of nan iterations": ("nan_iterations", 1),
    r"samples per second": ("samples_per_second", 1),
    r"samples/sec": ("samples_per_second", 1),
    r"tokens per gpu per second \(tgs\)": ("tokens_per_second_per_gpu", 1),
    r"throughput per GPU \(TFLOP/s/GPU\)": ("tflops", 1),
    r"approx flops per GPU": ("tflops", 1),
    r"TFLOPs": ("tflops", 1),
    r"actual seqlen": ("sequence_length", 1),
}
_NAIVE_START = re.compile(r"\biteration\s+([0-9]+)/\s*([0-9]+) \|")


def naive(text: str) -> dict[str, float] | None:
    """One line's numbers by a search over the raw text for each label."""
    start = _NAIVE_START.search(text)
    if start is None:
        return None
    found: dict[str, float] = {"iteration": int(start[1]), "train_iterations": int(start[2])}
    for label, (attribute, unit) in _LABELS.items():
        value = re.search(r"(?:^|\|)[^|]*?\b" + label + r": *([-+0-9.eE]+|nan|inf)", text)
        if value:
            found[attribute] = float(value[1].rstrip("E")) * unit
    return found


def compare(data: bytes) -> int:
    """Compare every number of every iteration line in `data`; give the number of lines."""
    reader = SourceReader()
    got = {
        entry.line: entry.event
        for entry in [*reader.feed(data), *reader.flush()]
        if isinstance(entry.event, IterationLogged)
    }
    expected = {
        number: numbers
        for number, raw in enumerate(data.split(b"\n"), start=1)
        if (numbers := naive(raw.decode("utf-8", "replace"))) is not None
    }
    assert set(got) == set(expected)
    for number, event in got.items():
        fields = to_fields(event)
        for name in ("event", "format", "rank", "node", "logged_at"):
            fields.pop(name, None)
        assert fields == pytest.approx(expected[number], rel=1e-12, abs=0), number
    return len(got)


@pytest.mark.real_logs
def test_real_logs() -> None:
    """Every number of every iteration line of the real logs is read, and none is invented."""
    assert (
        sum(
            compare(path.read_bytes())
            for path in sorted(REAL_LOGS.glob("*/*"))
            if path.suffix in (".out", ".log", ".err")
        )
        > 3000
    )


@pytest.mark.real_logs
def test_quoted_lines() -> None:
    """The lines that BigScience's chronicles quote, cut ones among them, are read as the naive reader reads them."""
    rows = (REAL_LOGS / "bigscience/chronicle-quotes.tsv").read_bytes().splitlines()[1:]
    log = b"".join(row.partition(b"\t")[2] + b"\n" for row in rows)
    assert compare(log) == len(re.findall(rb"\biteration +[0-9]+/", log)) > 30
