"""How well the detectors judge: synthetic trainings with known faults, development seeds apart from final seeds."""
