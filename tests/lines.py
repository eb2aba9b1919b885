"""Iteration lines of Megatron-LM, for tests in which any will do."""


def line(number: int, total: int = 1000, seconds: float = 0.25, loss: float | None = None) -> str:
    """One; the loss falls from 3 by 0.001 an iteration, or is the given one."""
    return (
        f" iteration {number:8d}/{total:8d} | consumed samples: {number * 8:12d} | elapsed time per iteration (ms): "
        f"{seconds * 1000:.1f} | learning rate: 1.500E-04 | global batch size: {8:5d} | lm loss: "
        f"{3 - number / 1000 if loss is None else loss:.6E} | loss scale: 1.0 | grad norm: {1 + number / 7:.3f} | "
        "number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )
