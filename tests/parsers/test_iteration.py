"""The iteration line: every emitter's form, what is none, what is cut, and every number of the real logs."""

from __future__ import annotations

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from parsers.events import IterationLogged, Malformed, to_fields
from parsers.reader import SourceReader
from tests.conftest import REAL_LOGS


def read(text: str) -> list[IterationLogged]:
    """The iterations that a source holding `text` tells."""
    return [event for event in events(text) if isinstance(event, IterationLogged)]


def events(text: str) -> list[Any]:
    """Every event that a source holding `text` tells."""
    reader = SourceReader()
    return [entry.event for entry in [*reader.feed(text.encode()), *reader.flush()]]


def one(text: str) -> dict[str, Any]:
    """The only event in `text`, as `parse --json` gives it, without its kind."""
    (event,) = events(text)
    fields = to_fields(event)
    assert fields.pop("event") == "iteration"
    return fields


FORMS = {
    "2019, no colons": (
        " iteration      200/  320000 | elapsed time per iteration (ms): 512.4 | learning rate 1.500E-05 |"
        " lm loss 8.125000E+00 | loss scale 65536.0 |",
        {
            "iteration": 200,
            "train_iterations": 320000,
            "seconds_per_iteration": 0.5124,
            "learning_rate": 1.5e-05,
            "lm_loss": 8.125,
            "loss_scale": 65536.0,
            "dialect": "megatron-lm",
        },
    ),
    "v1.1.5": (
        " iteration        7/     900 | elapsed time per iteration (ms): 98765.4 | learning rate: 2.500E-05 |"
        " lm loss: 1.175000E+01 | loss scale: 512.0 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |",
        {
            "iteration": 7,
            "train_iterations": 900,
            "seconds_per_iteration": 98.7654,
            "learning_rate": 2.5e-05,
            "lm_loss": 11.75,
            "loss_scale": 512.0,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "dialect": "megatron-lm",
        },
    ),
    "2021, BERT": (
        " iteration       40/    2000 | consumed samples:          640 | elapsed time per iteration (ms): 1402.5 |"
        " learning rate: 1.250E-04 | global batch size:    16 | lm loss: 9.500000E+00 | sop loss: 6.875000E-01 |"
        " loss scale: 16384.0 | grad norm: 6.999 | num zeros: 12.0 | params norm: 1234.567 |"
        " number of skipped iterations:   2 | number of nan iterations:   1 |",
        {
            "iteration": 40,
            "train_iterations": 2000,
            "consumed_samples": 640,
            "seconds_per_iteration": 1.4025,
            "learning_rate": 1.25e-04,
            "global_batch_size": 16,
            "lm_loss": 9.5,
            "losses": {"sop loss": 0.6875},
            "loss_scale": 16384.0,
            "grad_norm": 6.999,
            "num_zeros": 12.0,
            "params_norm": 1234.567,
            "skipped_iterations": 2,
            "nan_iterations": 1,
            "dialect": "megatron-lm",
        },
    ),
    "NVIDIA 2025, mixture of experts": (
        "12: [default3]: [2026-02-03 04:05:06.789012] iteration       33/   60000 | consumed samples:        33792 |"
        " skipped samples:            8 | elapsed time per iteration (ms): 6125.5 |"
        " throughput per GPU (TFLOP/s/GPU): 177.7 | energy per GPU (J/iter/GPU): 3100.5 |"
        " power per GPU (W/GPU): 514.6 |"
        " learning rate: 3.000000E-04 | decoupled learning rate: 6.000000E-04 | global batch size:  1024 |"
        " lm loss: 4.500000E+00 | load_balancing_loss: 1.015625E+00 | z_loss: 2.500000E-02 | mtp_1 loss: 5.000000E+00 |"
        " loss scale: 1.0 | grad norm: 0.750 | num zeros: 1299 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |",
        {
            "logged_at": "2026-02-03T04:05:06.789012",
            "iteration": 33,
            "train_iterations": 60000,
            "consumed_samples": 33792,
            "seconds_per_iteration": 6.1255,
            "tflops": 177.7,
            "learning_rate": 3e-4,
            "global_batch_size": 1024,
            "lm_loss": 4.5,
            "losses": {"load_balancing_loss": 1.015625, "z_loss": 0.025, "mtp_1 loss": 5.0},
            "loss_scale": 1.0,
            "grad_norm": 0.75,
            "num_zeros": 1299.0,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "extra": {
                "skipped samples": 8.0,
                "energy per GPU (J/iter/GPU)": 3100.5,
                "power per GPU (W/GPU)": 514.6,
                "decoupled learning rate": 6e-4,
            },
            "dialect": "megatron-lm",
        },
    ),
    "endless": (
        " iteration       12/infinity | consumed samples:           96 | elapsed time per iteration (ms): 250.0 |",
        {
            "iteration": 12,
            "consumed_samples": 96,
            "seconds_per_iteration": 0.25,
            "dialect": "megatron-lm",
        },
    ),
    "BigScience 2021": (
        " iteration        5/    1000 | consumed samples:         5120 | elapsed time per iteration (ms): 140250.5 |"
        " learning rate: 9.375E-05 | global batch size:  1024 | lm-loss: 3.250000E+01 | loss scale: -1.0 |"
        " grad norm: 0.000 | num zeros: 0.0 | number of skipped iterations:   0 | number of nan iterations:   0 |",
        {
            "iteration": 5,
            "train_iterations": 1000,
            "consumed_samples": 5120,
            "seconds_per_iteration": 140.2505,
            "learning_rate": 9.375e-05,
            "global_batch_size": 1024,
            "lm_loss": 32.5,
            "loss_scale": -1.0,
            "grad_norm": 0.0,
            "num_zeros": 0.0,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "dialect": "bigscience",
        },
    ),
    "BigScience 2022, curriculum": (
        "[default7]: iteration    23456/  115311 | consumed samples:     31234567 | consumed tokens:  63968393216 |"
        " elapsed time per iteration (s): 104.25 | learning rate: 5.500E-05 | global batch size:  2048 |"
        " lm loss: 2.250000E+00 | grad norm: 0.125 | num zeros: 0.0 | curriculum seqlen:  1024 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 19.645 |"
        " TFLOPs: 150.41 |",
        {
            "iteration": 23456,
            "train_iterations": 115311,
            "consumed_samples": 31234567,
            "consumed_tokens": 63968393216,
            "seconds_per_iteration": 104.25,
            "learning_rate": 5.5e-05,
            "global_batch_size": 2048,
            "lm_loss": 2.25,
            "grad_norm": 0.125,
            "num_zeros": 0.0,
            "sequence_length": 1024,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "samples_per_second": 19.645,
            "tflops": 150.41,
            "dialect": "bigscience",
        },
    ),
    "microsoft": (
        "worker-3:  iteration        9/     500 | consumed samples:          144 | consumed tokens:       294912 |"
        " elapsed time per iteration (ms): 15250.5 | learning rate: 1.800E-06 | global batch size:    16 |"
        " lm loss: 1.225000E+01 | moe loss: 6.250000E-02 | loss scale: 1.0 | grad norm: 17.125 | num zeros: 0.0 |"
        " curriculum seqlen:  1024 | random ltd reserved length:   512 | actual seqlen:  2048 |"
        " number of skipped iterations:   0 | number of nan iterations:   0 | samples per second: 1.049 |"
        " tokens per gpu per second (tgs): 134.285 | TFLOPs: 7.95 |",
        {
            "node": "worker-3",
            "iteration": 9,
            "train_iterations": 500,
            "consumed_samples": 144,
            "consumed_tokens": 294912,
            "seconds_per_iteration": 15.2505,
            "learning_rate": 1.8e-06,
            "global_batch_size": 16,
            "lm_loss": 12.25,
            "losses": {"moe loss": 0.0625},
            "loss_scale": 1.0,
            "grad_norm": 17.125,
            "num_zeros": 0.0,
            "sequence_length": 2048,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "samples_per_second": 1.049,
            "tokens_per_second_per_gpu": 134.285,
            "tflops": 7.95,
            "extra": {"curriculum seqlen": 1024, "random ltd reserved length": 512.0},
            "dialect": "microsoft",
        },
    ),
    "microsoft 2022": (
        " iteration        9/     500 | consumed samples:          144 | consumed tokens:       294912 |"
        " elapsed time per iteration (ms): 2000.0 | global batch size:    16 | samples per second: 8.000 |"
        " TFLOPs: 7.95 |",
        {
            "iteration": 9,
            "train_iterations": 500,
            "consumed_samples": 144,
            "consumed_tokens": 294912,
            "seconds_per_iteration": 2.0,
            "global_batch_size": 16,
            "samples_per_second": 8.0,
            "tflops": 7.95,
            "dialect": "microsoft",
        },
    ),
    "Ascend's misspelling": (
        " iteration  3/50000 | consumed samples: 768 | consumed tokens:  1572864 | elapsed time per iteration (ms):"
        "  34250.0 | learning rate:    1.500E-07 | gloabl batch size:  256 | lm loss:  1.250000E+01 |"
        " loss scale:  1.0 | grad norm:    8.125 | actual seqlen:  2048 |",
        {
            "iteration": 3,
            "train_iterations": 50000,
            "consumed_samples": 768,
            "consumed_tokens": 1572864,
            "seconds_per_iteration": 34.25,
            "learning_rate": 1.5e-07,
            "global_batch_size": 256,
            "lm_loss": 12.5,
            "loss_scale": 1.0,
            "grad_norm": 8.125,
            "sequence_length": 2048,
            "dialect": "microsoft",
        },
    ),
    "Argonne": (
        "[2024-07-22 11:51:43][INFO][training_log:661] -  iteration=       4/  317892 | consumed_samples=        3072 |"
        " consumed_tokens=    12582912 | elapsed_time_per_iteration_ms=29250.0 | learning_rate=9.125e-09 |"
        " global_batch_size=768 | lm loss=11.125000 | loss_scale=1.0 | grad_norm=6.125 | actual_seqlen= 4096 |"
        " number_of_skipped_iterations=  0 | number_of_nan_iterations=  0 | samples_per_second=26.256 |"
        " tokens_per_gpu_per_second_tgs=4481.094 | [LM]TFLOPs=20.50 | [DS]TFLOPs=26.44 |",
        {
            "logged_at": "2024-07-22T11:51:43",
            "iteration": 4,
            "train_iterations": 317892,
            "consumed_samples": 3072,
            "consumed_tokens": 12582912,
            "seconds_per_iteration": 29.25,
            "learning_rate": 9.125e-09,
            "global_batch_size": 768,
            "lm_loss": 11.125,
            "loss_scale": 1.0,
            "grad_norm": 6.125,
            "sequence_length": 4096,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "samples_per_second": 26.256,
            "tokens_per_second_per_gpu": 4481.094,
            "tflops": 20.5,
            "extra": {"[DS]TFLOPs": 26.44},
            "dialect": "argonne",
        },
    ),
    "Argonne, all underscores": (
        "iteration=1/1000 | consumed_samples=768 | elapsed_time_per_iteration_ms=12345.6 | lm_loss=11.25 | TFLOPs=9.75",
        {
            "iteration": 1,
            "train_iterations": 1000,
            "consumed_samples": 768,
            "seconds_per_iteration": 12.3456,
            "lm_loss": 11.25,
            "tflops": 9.75,
            "dialect": "argonne",
        },
    ),
    "gpt-neox": (
        " samples/sec: 204.538 | iteration        1/     512 | elapsed time per iteration (ms): 2503.2 |"
        " learning rate: 1.000E-05 | approx flops per GPU: 12.6TFLOPS | MFU: 35.8% | HFU: 47.75% |"
        " lm_loss: 1.125000E+01 | loss scale: 4096.0 | number of skipped iterations:   0 |"
        " number of nan iterations:   0 |",
        {
            "iteration": 1,
            "train_iterations": 512,
            "samples_per_second": 204.538,
            "seconds_per_iteration": 2.5032,
            "learning_rate": 1e-05,
            "tflops": 12.6,
            "mfu": 0.358,
            "hfu": 0.4775,
            "lm_loss": 11.25,
            "loss_scale": 4096.0,
            "skipped_iterations": 0,
            "nan_iterations": 0,
            "dialect": "gpt-neox",
        },
    ),
    "AMD Primus": (
        "[\x1b[32m20251203 07:58:29\x1b[0m][\x1b[36mrank-7/8\x1b[0m][\x1b[1mINFO \x1b[0m] \x1b[1m"
        "[--------trainer.py:2560] :  iteration     4000/    5000 | consumed samples:       512000 |"
        " elapsed time per iteration (ms): 13250.0/13375.5 |"
        " hip mem usage/free/total/usage_ratio: 150.00GB/105.98GB/255.98GB/58.60% |"
        " throughput per GPU (TFLOP/s/GPU): 571.5/566.1 | tokens per GPU (tokens/s/GPU): 9875.5/9780.0 |"
        " lm loss: 4.250000E-03 |\x1b[0m",
        {
            "rank": 7,
            "logged_at": "2025-12-03T07:58:29",
            "iteration": 4000,
            "train_iterations": 5000,
            "consumed_samples": 512000,
            "seconds_per_iteration": 13.25,
            "tflops": 571.5,
            "tokens_per_second_per_gpu": 9875.5,
            "lm_loss": 0.00425,
            "extra": {"hip mem usage/free/total/usage_ratio": "150.00GB/105.98GB/255.98GB/58.60%"},
            "dialect": "primus",
        },
    ),
    "AMD Primus 2026": (
        "[20260303 07:58:29][rank-0/8][INFO ] [--------trainer.py:2560] : iteration 8/ 50 |"
        " compute per GPU (TFLOP/s/GPU): 625.5 (avg 620.1) | tokens/s/GPU inst/harmonic mean: 12041.5/12000.0 |",
        {
            "rank": 0,
            "logged_at": "2026-03-03T07:58:29",
            "iteration": 8,
            "train_iterations": 50,
            "tflops": 625.5,
            "tokens_per_second_per_gpu": 12041.5,
            "dialect": "primus",
        },
    ),
    "a vendor's logger": (
        "2023-11-27 22:32:17,419 [Rank 15]:  iteration       20/   20 | elapsed time per iteration (ms): 3750.0 |"
        " lm loss: 8.750000E+00 | TFLOPs: 331.25 | tokens-per-second-per-gpu: 2184.53 |",
        {
            "rank": 15,
            "logged_at": "2023-11-27T22:32:17.419",
            "iteration": 20,
            "train_iterations": 20,
            "seconds_per_iteration": 3.75,
            "lm_loss": 8.75,
            "tflops": 331.25,
            "tokens_per_second_per_gpu": 2184.53,
            "dialect": "microsoft",
        },
    ),
    "two fields in one piece": (
        " [2024-09-22 11:20:43] iteration        4/   25000 | consumed samples:         4096 |"
        " iteration time: 265.625 s samples/sec: 3.9 | lm loss: 2.125000E+00 | tokens/sec/GPU: 75250 |",
        {
            "logged_at": "2024-09-22T11:20:43",
            "iteration": 4,
            "train_iterations": 25000,
            "consumed_samples": 4096,
            "seconds_per_iteration": 265.625,
            "samples_per_second": 3.9,
            "lm_loss": 2.125,
            "tokens_per_second_per_gpu": 75250.0,
            "dialect": "megatron-lm",
        },
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_form(form: str) -> None:
    """Every emitter's line gives every field that it carries, in our units, and nothing else."""
    line, expected = FORMS[form]
    assert one(line + "\n") == expected


@pytest.mark.parametrize("form", FORMS)
def test_fields_are_found_by_name(form: str) -> None:
    """The order of the fields makes no difference."""
    line, expected = FORMS[form]
    if "samples/sec" in line or "|" not in line or "\x1b" in line:
        return
    head, *fields = line.rstrip("| ").split("|")
    assert one("|".join([head, *reversed(fields), ""]) + "\n") == expected


def test_escape_bytes_lost() -> None:
    """A store that keeps the colour codes without their escape byte leaves Primus's line readable."""
    line, expected = FORMS["AMD Primus"]
    assert one(line.replace("\x1b", "")) == expected


def test_flops_units() -> None:
    """gpt-neox's flops are TFLOP/s whatever the unit, the bare number below 1000 FLOPS included."""
    line = " samples/sec: 2.5 | iteration 1/ 5 | approx flops per GPU: {} | lm_loss: 1.0E+00 |"
    found = [read(line.format(text))[0].tflops for text in ("1.5PFLOPS", "12.6TFLOPS", "512.0GFLOPS", "980.0")]
    assert found == pytest.approx([1500.0, 12.6, 0.512, 980e-12])


def test_ratios() -> None:
    """MFU is a ratio; a bare number that cannot be one is kept as text."""
    line = " iteration 1/ 5 | lm loss: 1.0E+00 | MFU: 41.5% | HFU: 0.5 |"
    assert (read(line)[0].mfu, read(line)[0].hfu) == (0.415, 0.5)
    event = read(" iteration 1/ 5 | lm loss: 1.0E+00 | MFU: 41.5 |")[0]
    assert (event.mfu, event.extra) == (None, {"MFU": "41.5"})


def test_not_a_number() -> None:
    """NaN and infinity are values; a loss that is missing stays absent."""
    (event,) = read(" iteration 1/ 5 | lm loss: NAN | sop loss: INF | grad norm: nan | loss scale: -inf |")
    assert math.isnan(event.lm_loss or 0.0)
    assert math.isnan(event.grad_norm or 0.0)
    assert (event.losses, event.loss_scale) == ({"sop loss": math.inf}, -math.inf)
    (event,) = read(" iteration 9027/ 9999 | elapsed time per iteration (ms): 1.0 | loss scale: 8192.0 |")
    assert (event.lm_loss, event.losses) == (None, {})


@pytest.mark.parametrize(
    ("fields", "dialect"),
    [
        ("lm-loss: 1.0E+00", "bigscience"),
        ("elapsed time per iteration (s): 2.00 | TFLOPs: 1.00", "bigscience"),
        ("elapsed time per iteration (s): 2.00 | samples per second: 1.00", "bigscience"),
        ("consumed tokens: 10 | elapsed time per iteration (s): 2.00", "bigscience"),
        ("consumed tokens: 10 | elapsed time per iteration (ms): 2.0", "bigscience"),
        ("elapsed time per iteration (ms): 2.0 | TFLOPs: 1.00", "microsoft"),
        ("elapsed time per iteration (ms): 2.0 | samples per second: 1.00", "microsoft"),
        ("elapsed time per iteration (ms): 2.0 | actual seqlen: 64", "microsoft"),
        ("lm loss: 1.0E+00 | tokens per gpu per second (tgs): 1.000", "microsoft"),
        ("lm_loss: 1.0E+00", "gpt-neox"),
        ("lm loss: 1.0E+00 | throughput per GPU (TFLOP/s/GPU): 1.0", "megatron-lm"),
    ],
)
def test_dialect(fields: str, dialect: str) -> None:
    """The dialect follows from the names in the line itself."""
    assert read(f" iteration 3/ 9 | {fields} |")[0].dialect == dialect


@pytest.mark.parametrize(
    "text",
    [
        "validation loss at iteration 500 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 | ",
        "[Rank 7] (after 20 iterations) memory (MB) | allocated: 21.5 | max allocated: 24.0 | reserved: 29.0",
        "Evaluating iter 3/10",
        "saving checkpoint at iteration    2000 to somewhere",
        " iteration 5/ 10 |",
        " iteration 5/ 10",
        " iteration 5/ 10 | 50% | 3.2s/it |",
        "training [#####     ] iteration 5/10 in progress",
        "+ echo ' iteration 5/ 10 | lm loss: 2.5E+00 |'",
        "  log_example ..................................... ' iteration 5/ 10 | lm loss: 2.5E+00 |",
        "my_iteration 5/ 10 | lm loss: 2.5E+00 |",
        "args.iteration=5/10 | lm_loss=2.5 |",
        "elapsed time per iteration (ms): 12.5 | lm loss: 2.5E+00 |",
    ],
)
def test_no_iteration(text: str) -> None:
    """The word `iteration` alone makes no iteration line."""
    assert not read(text + "\n")


def test_malformed() -> None:
    """A line in the iteration's shape of which no field parses is reported, once, and starts nothing."""
    (event,) = events(" iteration 5/ 10 | consumed specimens: 7 | lm lustre: many |\n")
    assert isinstance(event, Malformed)
    assert event.rule == "megatron.iteration"
    (event,) = events("iteration=5/10 | lm_lustre=2.5 |\n")
    assert isinstance(event, Malformed)
    assert event.rule == "argonne.iteration"


def test_unreadable_value_is_kept() -> None:
    """A known name with a value that is none keeps its text under that name."""
    (event,) = read(" iteration 5/ 10 | lm loss: n/a | z_loss: -- | grad norm: 1.500 | epoch: three |")
    assert (event.lm_loss, event.grad_norm) == (None, 1.5)
    assert event.extra == {"lm loss": "n/a", "z_loss": "--", "epoch": "three"}


CUT = (
    " iteration      125/  115311 | consumed samples:        96000 | learning rate: 5.875E-05 | lm loss: 2.463281E+00 |"
)


def test_every_cut() -> None:
    """A line cut anywhere never gives a number that the whole line does not hold."""
    whole = to_fields(read(CUT)[0])
    for end in range(CUT.index("|") + 2, len(CUT) + 1):
        for event in read(CUT[:end]):
            got = to_fields(event)
            texts = got.pop("extra", {})
            got.pop("dialect")
            for name, value in got.items():
                assert value == whole[name] or (name == "lm_loss" and str(whole[name]).startswith(str(value))), CUT[
                    :end
                ]
            assert all(isinstance(text, str) for text in texts.values())


def test_cut_behind_the_colon() -> None:
    """A value that is cut off behind its colon is absent, and the iteration still counts."""
    assert one(" iteration 5/ 10 | consumed samples: 70 | lm loss:") == {
        "iteration": 5,
        "train_iterations": 10,
        "consumed_samples": 70,
        "dialect": "megatron-lm",
    }
    assert one(" iteration 5/ 10 | consumed samples: ")["iteration"] == 5


def test_last_bar_missing() -> None:
    """A last value in its full shape is believed without a closing bar."""
    (event,) = read(" iteration 5/ 10 | lm loss: 2.500000E+00 | number of nan iterations:   0 | TFLOPs: 151.25")
    assert event.tflops == 151.25
    assert read(" iteration 5/ 10 | lm loss: 2.500000E+00")[0].lm_loss == 2.5
    assert read(" iteration 5/ 10 | lm loss: 2.5 | number of nan iterations:   0")[0].nan_iterations == 0


def test_several_in_one_line() -> None:
    """Iteration lines that were glued together give an event each, with their own fields."""
    first = " iteration 1/ 9 | lm loss: 1.0E+00 | grad norm: 0.1 |"
    second = " iteration 2/ 9 | lm loss: 2.0E+00 |"
    assert [(e.iteration, e.lm_loss, e.grad_norm) for e in read(first + second)] == [(1, 1.0, 0.1), (2, 2.0, None)]
    neox = " samples/sec: {0}.5 | iteration {0}/ 9 | lm_loss: {0}.0E+00 |"
    glued = "".join(neox.format(n) for n in (1, 2, 3))
    assert [(e.iteration, e.samples_per_second, e.lm_loss) for e in read(glued)] == [
        (1, 1.5, 1.0),
        (2, 2.5, 2.0),
        (3, 3.5, 3.0),
    ]
    assert not [e for e in read(glued) if e.extra]


def test_text_around() -> None:
    """Text before, another rank's label behind and a container's JSON around the line change nothing."""
    line = " iteration 5/ 10 | lm loss: 2.5E+00 | number of nan iterations:   0 |"
    plain = one(line)
    for around in (
        line + "[default3]:",
        line + "[default3]:[default3]:",
        "some words before" + line,
        "loading ........" + line,
        '{"log":"' + line + '\\n","stream":"stdout","time":"2026-01-01T00:00:00Z"}',
        line + "\r",
        line + "[Rank 0] (after 5 iterations) memory (MB) | allocated: 2.0 | reserved: 3.0",
    ):
        assert to_fields(read(around)[0]) == {"event": "iteration", **plain}, around


def test_tee_label_cuts_the_line() -> None:
    """What another rank wrote behind the line is read by itself."""
    first, second = read(" iteration 5/ 9 | lm loss: 2.5E+00 |[default3]: iteration 6/ 9 | lm loss: 2.25E+00 |")
    assert (first.iteration, first.lm_loss, second.iteration, second.lm_loss) == (5, 2.5, 6, 2.25)


def test_hostile_lines_stay_bounded() -> None:
    """Very many fields or very long values make no large event."""
    (event,) = read(" iteration 5/ 10 | lm loss: 2.5E+00 |" + "".join(f" k{n}: {n} |" for n in range(5000)))
    assert len(event.extra) < 200
    (event,) = read(" iteration 5/ 10 | lm loss: 2.5E+00 | note: " + "x" * 50_000 + " |")
    assert len(str(event.extra)) < 500
    assert (
        read(" iteration 5/ 10 | lm loss: 2.5E+00 | consumed samples: " + "9" * 6000 + " |")[0].consumed_samples is None
    )


_PIECES = st.lists(
    st.one_of(
        st.sampled_from(
            [" lm loss: ", "1.5E+00", " | ", "|", " iteration 5/ 9 |", "iteration=", "=", ":", " ", "%", "nan"]
        ),
        st.text(max_size=5),
    ),
    max_size=30,
)


@given(_PIECES)
def test_never_raises(pieces: list[str]) -> None:
    """Whatever follows the anchor, reading gives events and never an exception."""
    for event in events(" iteration 5/ 9 |" + "".join(pieces)):
        to_fields(event)


# --- real logs, against a reader that shares nothing with ours -------------------------------------------------------

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
    r"params norm": ("params_norm", 1),
    r"num zeros": ("num_zeros", 1),
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
        for name in ("event", "dialect", "rank", "node", "logged_at"):
            fields.pop(name, None)
        assert fields == pytest.approx(expected[number], rel=1e-12, abs=0), number
    return len(got)


@pytest.mark.real_logs
@pytest.mark.parametrize(
    ("path", "lines", "dialect"),
    [
        ("bigscience/meg_ds_3d_gpt2_perf_n16-ds-on.out", 49, "bigscience"),
        ("bigscience/meg_ds_zero_gpt2_perf_n16_nbs48_ms48.out", 3, "megatron-lm"),
        ("bigscience/meg_gpt2_base_n4_dp1_tp4_pp4-1809579.out", 20, "megatron-lm"),
        ("bigscience/meg_gpt2_base_n8_dp1_tp4_pp8-1809562.out", 20, "megatron-lm"),
        ("bigscience/hf_ds_gpt2_perf_n16_bs4-mbs8.out", 0, None),
        ("cpu/mds_clean.log", 300, "microsoft"),
        ("cpu/mds_kill9.log", 150, "microsoft"),
        ("deepspeed/opt-1.3b-globalBatchSize128.log", 0, None),
        ("hf/packing_stdout.log", 0, None),
        ("microsoft/qwen7b_static_1305_500.log", 500, "microsoft"),
        ("microsoft/tp2pp1dp8_baseline50.log", 50, "microsoft"),
        ("neox/70M_512step.out", 512, "gpt-neox"),
        ("nvidia/2256081.out", 343, "megatron-lm"),
        ("nvidia/2340723.out", 1549, "megatron-lm"),
        ("nvidia/2340723.err", 0, None),
    ],
)
def test_real_log(path: str, lines: int, dialect: str | None) -> None:
    """Every number of every iteration line of a real log is read, and none is invented."""
    data = (REAL_LOGS / path).read_bytes()
    assert compare(data) == lines
    assert {event.dialect for event in read(data.decode("utf-8", "replace"))} == ({dialect} if dialect else set())


@pytest.mark.real_logs
def test_quoted_lines() -> None:
    """The lines that BigScience's chronicles quote, cut ones among them, are read as the naive reader reads them."""
    rows = (REAL_LOGS / "bigscience/chronicle-quotes.tsv").read_bytes().splitlines()[1:]
    log = b"".join(row.partition(b"\t")[2] + b"\n" for row in rows)
    assert compare(log) == len(re.findall(rb"\biteration +[0-9]+/", log)) > 30
