"""Dialects as data: what a trainer's lines look like, one YAML file each, turned into the engine's ordinary rules."""
