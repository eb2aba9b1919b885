"""Robust statistics of a few numbers or of a long series. Pure; every state can be saved."""
