"""A flag that a signal handler may set."""

import threading
from contextlib import suppress


class Flag:
    """Like threading.Event for one waiting thread, but `set` takes no lock.

    A signal handler runs between two instructions of the main thread, also of another handler. If both set one
    threading.Event, the second waits for the lock that the first holds: the program never ends.
    """

    def __init__(self) -> None:
        self._set = False
        self._bell = threading.Lock()  # released to end the wait
        self._bell.acquire()

    def is_set(self) -> bool:
        """Whether `set` was called since the last `clear`."""
        return self._set

    def set(self) -> None:
        """Set the flag and end the wait."""
        self._set = True
        with suppress(RuntimeError):  # already released
            self._bell.release()

    def clear(self) -> None:
        """Unset the flag."""
        self._set = False
        self._bell.acquire(blocking=False)

    def wait(self, seconds: float) -> bool:
        """Wait until the flag is set, at most `seconds`; return whether it is set."""
        if not self._set:
            self._bell.acquire(timeout=seconds)
        return self._set
