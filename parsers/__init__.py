"""Bytes of training logs in, facts out: pure, no clock, no file, no logging, no import of `monitor`."""
