"""Robust figures of a few numbers or of a long series. Pure; all that is kept can be saved."""
