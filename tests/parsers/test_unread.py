"""What is told of a step's line that no rule reads."""

import pytest

from megatron_monitor.parsers.events import IterationLogged, StepGuessed
from megatron_monitor.parsers.reader import SourceReader

GUESSED = {
    "it   1200 ~ 0.41s ~ train/loss 2.31": ((1200,), (2.31,)),
    "2025-09-23 06:53:00,769 - train - Step 47 loss: 27.95115852355957 entropy: 0.7": ((47,), (27.95115852355957,)),
    "iteration 250, epoch 1 : loss : 2.632169, lr: 0.000800": ((250, 1), (2.632169,)),
    "iter 600:, hard_loss_metric=0.5517, full_loss_metric=1.8e-05, lr=0.000100": ((600,), (0.5517, 1.8e-05)),
    "[epoch:6/1200] [loss:0.00077] [lr:0.005803]": ((6,), (0.00077,)),
    '{"t": 3.2, "step": 12, "train": {"loss": 2.5}}': ((12,), (2.5,)),
    "Batch 3 Loss: tensor(2.3100, device='cuda:0')": ((3,), (2.31,)),
    "Epoch 6/100 - Train Loss: 2.2840, Val Loss: 2.1420": ((6,), (2.284, 2.142)),
}  # fmt: skip


@pytest.mark.parametrize("text", GUESSED)
def test_its_numbers_and_its_losses(text: str) -> None:
    """Whatever the form; and the same from the template that lines of one shape are read by."""
    reader = SourceReader()
    for _ in range(4):
        (found,) = reader.feed(text.encode() + b"\n")
        assert found.event == StepGuessed(
            counts=GUESSED[text][0], losses=GUESSED[text][1], logged_at=found.event.logged_at
        )


@pytest.mark.parametrize(
    "text",
    [
        "step 1200 of the set-up is done",
        "loss 2.31 is the best so far",
        "iteration 12: waiting for 3 nodes, packet loss 3%",
        "step 1200 | loss nan",
        "credit 7, loss 2.31",
        "step 1.5, loss 2.31",
        "reduce the loss scale in step 7",
        "heartbeat 1200",
    ],
)
def test_what_names_only_one_of_them_says_nothing(text: str) -> None:
    """Near misses."""
    assert SourceReader().feed(text.encode() + b"\n") == []


def test_a_line_that_a_rule_reads_is_no_guess() -> None:
    """The guess is asked last."""
    (found,) = SourceReader().feed(b"step 2100 | loss 3.8380 | lr 2.81e-04 | 416 tok/s\n")
    assert isinstance(found.event, IterationLogged)
