"""The benchmark of the loss detectors runs, and what it feeds is what it says."""

from benchmarks.detection.loss import COURSES, course, evaluated


def test_every_kind_of_training_is_read() -> None:
    """Each course counts its iterations through the parser; short and healthy, none raises an incident."""
    for seed in range(len(COURSES)):
        done, said = evaluated(course(seed, 0.004, iterations=200, restarts=False))
        assert done == 200
        assert [(item.incident, item.iteration) for item in said] == []


def test_a_fault_strikes_where_it_says() -> None:
    """The loss is gone from iteration 151 on."""
    _, said = evaluated(course(0, 0.004, iterations=200, restarts=False, fault="NaN", at=151))
    assert [(item.incident, item.iteration) for item in said if item.status == "firing"] == [("nan_loss", 151)]
