"""How soon and how surely incidents are found: `python -m benchmarks.detection.NAME`."""
