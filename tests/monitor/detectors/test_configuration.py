"""Configuration: every rule fires on the lines that break it, and legal configurations stay silent."""

import pytest

from tests.monitor.detectors.training_log import TrainingLog, arguments, bloom


def started(text: str = "", **changes: object) -> TrainingLog:
    """A run whose arguments were dumped."""
    run = TrainingLog()
    run.feed(text + arguments(**changes))
    return run


def test_bloom_is_clean() -> None:
    """The arguments and lines of a sound run: nothing at all is wrong, for a thousand lines."""
    run = started()
    run.feed("".join(bloom(number, 2.5 + 1 / number, 0.2 + number % 7 / 100) for number in range(1, 1000)))
    assert run.reported == []


RIGHT = {"rampup_batch_size": "['24', '24', '1000000']", "global_batch_size": 2016, "micro_batch_size": 1,
         "data_parallel_size": 12, "world_size": 576}  # fmt: skip
WRONG = {**RIGHT, "rampup_batch_size": "['32', '32', '1000000']"}


# --- arguments -----------------------------------------------------------------------------------------------------


def test_a_ramp_that_does_not_divide() -> None:
    """Told when the arguments are printed: 24 is a multiple of 12, 32 is not."""
    assert started(**RIGHT).reported == []
    run = started(**WRONG)
    assert [item.severity for item in run.firings("configuration")] == ["warning"]


ENGINE = """\
[2026-03-01 08:00:00,100] [INFO] [config.py:1000:print]   train_batch_size ............. 48
[2026-03-01 08:00:00,100] [INFO] [config.py:1000:print]   train_micro_batch_size_per_gpu  3
[2026-03-01 08:00:00,100] [INFO] [config.py:1000:print]   gradient_accumulation_steps .. 1
"""


@pytest.mark.parametrize("before", [True, False])
def test_the_batch_of_the_engine_is_not_that_of_the_loop(before: bool) -> None:
    """What DeepSpeed's configuration calls the batch stands beside Megatron's own, whichever is printed first; alone it
    is the batch.
    """
    run = started(text=ENGINE if before else "")
    reported = run.run.state.attempt.topology.global_batch_size
    run.feed(ENGINE)
    assert run.run.state.attempt.topology.global_batch_size == reported != 48
    assert not run.firings("configuration")
    single = TrainingLog()
    single.feed(ENGINE)
    assert single.run.state.attempt.topology.global_batch_size == 48


@pytest.mark.parametrize(
    "changes",
    [
        {"context_parallel_size": 2, "data_parallel_size": 4},
        {"rampup_batch_size": "['32', '32', '9765625']"},
        {"encoder_tensor_model_parallel_size": 2, "world_size": 400},
        {"gtp_remat_size": 2, "world_size": 768},
        {"decrease_batch_size_if_needed": True, "global_batch_size": 2050, "rampup_batch_size": "['32', '32', '100']"},
        {"world_size": None, "data_parallel_size": None},
    ],
)
def test_legal_layouts(changes: dict[str, object]) -> None:
    """Ramp-ups that divide, other parallelism, unknown inputs."""
    run = started(**changes)
    size = int(str(changes.get("global_batch_size", 2048)))
    run.feed("".join(bloom(number, 2.5 + 1 / number, batch=size) for number in range(1, 12)))
    assert run.incidents == set()
