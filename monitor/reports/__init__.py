"""Tables for other documents: benchmark rows, comparisons of two runs, and their formats."""
