"""Tables that people carry away: benchmark rows, comparisons of two runs, and how they are written out."""
