"""What paths, pods and steps tell of whose a stream is."""

import pytest

from monitor.identity import Member, differs, key_of, overlap, owner_of, relation
from parsers.events import EngineStepLogged, IterationLogged, TrainerLogged


@pytest.mark.parametrize(
    ("pod", "container", "owner"),
    [
        ("tr11-x7k2p", "trainer", "ml/tr11"),
        ("tr11-b9wdq", "trainer", "ml/tr11"),
        ("sweep-1-4m8xk", "trainer", "ml/sweep-1"),
        ("sweep-2-9jrtv", "trainer", "ml/sweep-2"),
        ("gpt-20261121-qrs54", "trainer", "ml/gpt-20261121"),
        ("gpt-tp8pp-x7k2p", "trainer", "ml/gpt-tp8pp"),
        ("gpt-workers-0-3-p9c2z", "trainer", "ml/gpt-workers-0-3"),
        ("llama3.1-8b-mz4wd", "trainer", "ml/llama3.1-8b"),
        ("ubuntu-l70b-workload-0-5-c8sxg", "workload", "ml/ubuntu-l70b"),
        ("llama-node-0-1-9xv4j", "node", "ml/llama"),
        ("llama-launcher-0-0-kl2hd", "node", "ml/llama"),
        ("gpt-master-0", "pytorch", "ml/gpt"),
        ("gpt-7-worker-12", "pytorch", "ml/gpt-7"),
        ("gpt-worker-worker-0", "pytorch", "ml/gpt-worker"),
        ("bert-launcher-hq2xs", "launcher", "ml/bert"),
        ("bert-worker-3", "worker", "ml/bert"),
        ("bert1-launcher", "mpi", "ml/bert1"),
        ("moe-3", "trainer", "ml/moe-3"),
        ("x" * 57 + "-x7k2p", "trainer", "ml/" + "x" * 57 + "-x7k2p"),
    ],
)
def test_owners_of_pods(pod: str, container: str, owner: str) -> None:
    """Numbers are never taken off without proof."""
    assert owner_of(f"/var/log/pods/ml_{pod}_6f1c-22/{container}/0.log") == owner
    assert owner_of(f"/var/log/containers/{pod}_ml_{container}-{'0a' * 32}.log") == owner
    assert owner_of(f"/logs/{pod}/main.log") == ""


def stream(*events: IterationLogged | EngineStepLogged | TrainerLogged) -> Member:
    """One that has told these steps."""
    member = Member("r", "path")
    for event in events:
        member.note_step(event, repr(event))
    return member


def steps(loss: float, first: int = 1, rank: int | None = None) -> list[IterationLogged]:
    """Three of Megatron's."""
    return [
        IterationLogged(iteration=number, lm_loss=loss / number, rank=rank, dialect="megatron-lm")
        for number in range(first, first + 3)
    ]


def test_steps_tell_trainings_apart() -> None:
    """Other values of the same steps are another training, unless ranks print their own. An engine, a bar tell the
    steps of the loop; a trainer's dicts are of another program.
    """
    one, engine = stream(*steps(3.0)), stream(*(EngineStepLogged(form="step", step=n) for n in (1, 2)))
    assert relation(stream(*steps(3.0)), one, {}) == "same"
    assert relation(stream(*steps(4.0)), one, {}) == "another"
    assert relation(stream(*steps(4.0)[:1]), one, {}) == "unknown"
    assert relation(stream(*steps(3.0, 50)), one, {}) == "unknown"
    assert relation(stream(*steps(3.0, 50)), one, {50: [("iteration", 0.06, None, None)]}) == "same"
    assert relation(stream(*steps(4.0, rank=1)), stream(*steps(3.0, rank=0)), {}) == "ranks"
    assert relation(engine, one, {}) == "same"
    assert relation(stream(*(TrainerLogged(step=n, loss=1.0) for n in (1, 2))), one, {}) == "another"
    assert relation(stream(), one, {}) == "same"
    first, second = stream(), stream()
    first.arguments, second.arguments = 1, 2
    assert relation(first, second, {}) == "another"


def test_keys_and_times() -> None:
    """A task is of its array; no key tells nothing apart. Streams overlap by stamps, or nobody knows."""
    assert differs("77", "78")
    assert not differs("77_1", "77")
    assert not differs("", "78")
    assert key_of("/l/a.log", None).id == ""
    one, two = stream(), stream()
    assert overlap(one, two) is None
    for stamp in (1.0, 5.0):
        one.note_stamp(stamp)
    two.note_stamp(5.5)
    assert overlap(one, two) is False
    two.note_stamp(4.5)
    assert overlap(one, two) is True
