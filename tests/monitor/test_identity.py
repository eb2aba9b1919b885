"""What paths, pods and steps tell of whose a stream is."""

from megatron_monitor.identity import StreamIdentity, differs, key_of, overlap, relation
from megatron_monitor.parsers.events import EngineStepLogged, IterationLogged, TrainerLogged


def stream(*events: IterationLogged | EngineStepLogged | TrainerLogged) -> StreamIdentity:
    """One that has told these steps."""
    member = StreamIdentity("r", "path")
    for event in events:
        member.note_step(event, repr(event))
    return member


def steps(loss: float, first: int = 1, rank: int | None = None) -> list[IterationLogged]:
    """Three of Megatron's."""
    return [
        IterationLogged(iteration=number, lm_loss=loss / number, rank=rank, format="megatron-lm")
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
    assert relation(stream(*steps(3.0, 50)), one, {50: [(0.06, None, None, None, 0, "a")]}) == "same"
    assert relation(stream(*steps(4.0, rank=1)), stream(*steps(3.0, rank=0)), {}) == "ranks"
    assert relation(engine, one, {}) == "same"
    assert relation(stream(*(TrainerLogged(step=n, loss=1.0) for n in (1, 2))), one, {}) == "another"
    assert relation(stream(), one, {}) == "same"
    first, second = stream(), stream()
    first.arguments, second.arguments = "1", "2"
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
