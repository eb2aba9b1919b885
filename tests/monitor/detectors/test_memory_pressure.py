"""Memory pressure: near the limit; silent on sizes that nobody told."""

import pytest

from tests.monitor.detectors.training_log import TrainingLog, arguments, bloom
from tests.monitor.playing import Playing

KIND = "memory_pressure"
A100 = "GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5c1e)\n"
GIB = 1024.0  # in the MB that the line prints


def report(iteration: int, allocated: float, reserved: float | None = None) -> str:
    """Megatron's line; in MiB."""
    most = allocated + 2048 if reserved is None else reserved
    return (
        f"[Rank 0] (after {iteration} iterations) memory (MB) | allocated: {allocated:.4f} | max allocated: "
        f"{allocated + 1024:.4f} | reserved: {most:.1f} | max reserved: {most:.1f}\n"
    )


def host(percent: float) -> str:
    """DeepSpeed's see_memory_usage."""
    return (
        "[2026-01-01 00:00:00,000] [INFO] [utils.py:806:see_memory_usage] after step\n"
        "[2026-01-01 00:00:00,000] [INFO] [utils.py:807:see_memory_usage] MA 30.0 GB         Max_MA 31.0 GB         "
        "CA 40.0 GB         Max_CA 40 GB \n"
        "[2026-01-01 00:00:00,000] [INFO] [utils.py:815:see_memory_usage] CPU Virtual Memory:  "
        f"used = {percent * 5:.2f} GB, percent = {percent:.1f}%\n"
    )


@pytest.mark.parametrize(("reserved", "fires"), [(77.0, True), (76.0, True), (74.0, False), (53.0, False)])
def test_near_the_device_size(reserved: float, fires: bool) -> None:
    """76 of 80 GB was "too close to OOM"."""
    run = TrainingLog()
    run.feed(A100 + arguments())
    run.feed(bloom(1, 2.5) + report(1, 40 * GIB, reserved * GIB) + bloom(2, 2.5) + bloom(3, 2.5))
    assert [item.severity for item in run.firings(KIND)] == ["warning"] * fires


def test_without_the_device_size_nothing_is_near() -> None:
    """Megatron does not print the device's name."""
    run = TrainingLog()
    run.feed(arguments() + bloom(1, 2.5) + report(1, 78 * GIB, 79.5 * GIB) + bloom(2, 2.5) + bloom(3, 2.5))
    assert not run.firings(KIND)


@pytest.mark.parametrize(("percent", "fires"), [(94.9, False), (95.0, True)])
def test_near_the_host_size(percent: float, fires: bool) -> None:
    """IDEFICS left by itself at 95 %."""
    run = TrainingLog()
    run.feed(arguments() + bloom(1, 2.5) + host(percent) + bloom(2, 2.5) + bloom(3, 2.5))
    assert bool(run.firings(KIND)) is fires


def test_memory_that_grows_in_the_lines_of_an_engine() -> None:
    """DeepSpeed prints it with each step's throughput: the step at which it is near is the onset."""
    playing = Playing()
    playing.feed([(0.0, A100)])
    for step in range(1, 9):
        most = 79.0 if step > 4 else 31.0
        rates = f"epoch=0/micro_step={step}/global_step={step}, RunningAvgSamplesPerSec=12.8, CurrSamplesPerSec=12.8, "
        playing.feed([(5.0 * step, (
            f"[Rank 0] step={step}, skipped=0, lr=[1e-05], mom=[[0.9, 0.95]]\n"
            f"{rates}MemAllocated=30.0GB, MaxMemAllocated={most}GB\n"
        ))])  # fmt: skip
    assert playing.end(0.0).firing(KIND).onset_iteration == 5
