"""Iteration lines and arguments of Megatron-LM, for tests in which any will do."""


def line(
    number: int, total: int = 1000, seconds: float = 0.25, loss: float | None = None, *,
    batch: int = 8, norm: float | None = None, date: str = "",
) -> str:  # fmt: skip
    """One; the loss falls from 3 by 0.001 an iteration, or is the given one; the norm grows, or is."""
    return (
        f" {date}iteration {number:8d}/{total:8d} | consumed samples: {number * batch:12d} | elapsed time per "
        f"iteration (ms): {seconds * 1000:.1f} | learning rate: 1.500E-04 | global batch size: {batch:5d} | lm loss: "
        f"{3 - number / 1000 if loss is None else loss:.6E} | loss scale: 1.0 | grad norm: "
        f"{1 + number / 7 if norm is None else norm:.3f} | number of skipped iterations:   0 | number of nan "
        "iterations:   0 |\n"
    )


def dump(**values: object) -> str:
    """The arguments, as they are dumped at the start."""
    rows = "".join(f"  {name} {'.' * max(2, 48 - len(name))} {value}\n" for name, value in values.items())
    return f"{'-' * 24} arguments {'-' * 24}\n{rows}{'-' * 20} end of arguments {'-' * 21}\n"
