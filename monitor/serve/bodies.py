"""Bodies of requests, read whole before anybody looks at them: each to a limit, all together to another."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import h11

_PIECE = 64 * 1024  # bytes read at a time


class TooLargeError(Exception):
    """One body alone is more than is read."""


class TooManyError(Exception):
    """There is no room for it beside the others now."""


@dataclass(slots=True)
class Bodies:
    """Those of one server. For its asyncio thread."""

    most: int = 0
    """Bytes of a body; 0: none has one."""
    together: int = 256 << 20
    seconds: float = 60.0
    """For one to come whole."""
    held: int = 0

    @asynccontextmanager
    async def read(
        self, http: h11.Connection, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> AsyncIterator[bytes]:
        """The body behind a request's head, held while the context lasts. TooLargeError, TooManyError, TimeoutError,
        h11.RemoteProtocolError where the client has closed.
        """
        body = bytearray()
        try:
            async with asyncio.timeout(self.seconds):
                while not isinstance(event := http.next_event(), h11.EndOfMessage):
                    if isinstance(event, h11.Data):
                        body += event.data
                        self.held += len(event.data)
                        if len(body) > self.most:
                            raise TooLargeError
                        if self.held > self.together:
                            raise TooManyError
                    else:
                        if http.they_are_waiting_for_100_continue:
                            writer.write(http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")
                        http.receive_data(await reader.read(_PIECE))
            yield bytes(body)
        finally:
            self.held -= len(body)
