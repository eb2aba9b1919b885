"""The clock of one file: when each of its lines was written, as far as the lines themselves tell.

A line with a stamp is dated. An undated line was written somewhere between the dated ones around it, and is placed by
what it says: an iteration, a save or a watchdog by its own duration, an evaluation or a set-up line in the time that
nothing else explains, a new launch after the end of the last one. What is left open is said (`Placed.proof`): from a
silence that the lines do not prove nothing may be concluded.

Stamps of several clocks stand in one file: each is read on an offset of its own. Where a clock goes back (the end of
summer time, another zone, a doubled or merged log) its offset changes and time goes on; it never runs backwards.
Law: pure; memory does not grow with the log.
"""

from monitor.source_clock.clock import Placed, SourceClock
from monitor.source_clock.dating import Dating, Silence, clocked

__all__ = ["Dating", "Placed", "Silence", "SourceClock", "clocked"]
