"""Paths and patterns in, messages out: discovery, identity, rotation, mounts, wake-ups, resume.

Law: polling is the truth, inotify only wakes earlier; could not observe is never gone; nothing is delivered twice.
"""
