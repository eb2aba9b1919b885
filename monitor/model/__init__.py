"""Arithmetic of models and GPUs: sizes, layouts, FLOPs, what a GPU can do. Knows no run; pure."""
