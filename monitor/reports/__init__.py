"""Tables that people carry away: benchmark rows, comparisons, FLOPs and ramp-up plans, and how they are written out."""
