"""A child process that is restarted if it ends, and that ends with this process."""

import logging
import signal
import subprocess
import threading
from collections.abc import Sequence

_log = logging.getLogger(__name__)

_POLL = 0.5  # seconds between two checks of the process
_PAUSES = 1.0, 30.0  # seconds before a restart: the first and the maximum
_STOP = 5.0  # seconds for an orderly end


class Child:
    """A context manager: the process runs during the `with` statement."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        self._stopping = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._keep, name="child", daemon=True)

    def __enter__(self) -> "Child":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join(2 * _STOP)

    def reload(self) -> None:
        """Send SIGHUP to the process. One that has not set its handler yet ends, and is restarted."""
        if self._process is not None:
            self._process.send_signal(signal.SIGHUP)

    def _keep(self) -> None:
        pause = _PAUSES[0]
        while not self._stopping.is_set():
            process = self._process = subprocess.Popen(self._arguments)  # noqa: S603 - this program, with its own arguments
            waited = 0.0
            while process.poll() is None and not self._stopping.wait(_POLL):
                waited += _POLL
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(_STOP)
                except subprocess.TimeoutExpired:
                    process.kill()
                return
            pause = _PAUSES[0] if waited > _PAUSES[1] else pause
            _log.error("child=%d ended with %d and is restarted in %.0f s", process.pid, process.returncode, pause)
            self._stopping.wait(pause)
            pause = min(2 * pause, _PAUSES[1])
