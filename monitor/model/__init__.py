"""Arithmetic of models and GPUs: sizes, layouts, FLOPs, peak rates. Independent of runs. Pure."""
