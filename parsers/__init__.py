"""Turns bytes of training logs into events. Pure: no clock, no file, no logging, no import of `monitor`."""
