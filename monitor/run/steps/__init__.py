"""A report of a step: who counts it, whether it is a copy, how long it took, and what the detectors see of it. Pure."""
