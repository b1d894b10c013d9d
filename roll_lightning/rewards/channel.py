"""Messages between the trainer and a reward worker."""

from __future__ import annotations

import socket
import struct
import time

_HEADER = struct.Struct("!Q")


class Channel:
    """Length-prefixed messages over a connected socket, each wait bounded by a point in time.

    ``end`` is a value of ``time.monotonic()``; ``None`` waits until a message comes or the other side is gone.

    Args:
        connection: one side of a socket pair.
    """

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, message: bytes, end: float | None = None) -> None:
        """Send one message.

        Raises:
            TimeoutError: the other side did not take it by ``end``.
            OSError: the other side is gone.
        """
        self._wait_until(end)
        self._connection.sendall(_HEADER.pack(len(message)) + message)

    def receive(self, end: float | None = None) -> bytes:
        """Receive one message.

        Raises:
            TimeoutError: it had not come by ``end``.
            EOFError: the other side is gone. (OSError, too, if it left with data unread.)
        """
        (length,) = _HEADER.unpack(self._read(_HEADER.size, end))
        return self._read(length, end)

    def readable(self) -> bool:
        """Whether a read would not wait: a message is there, the other side is gone, or this side is closed."""
        try:
            self._connection.settimeout(0.0)
            self._connection.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            pass
        return True

    def close(self) -> None:
        """Close this side."""
        self._connection.close()

    def _read(self, count: int, end: float | None) -> bytes:
        parts: list[bytes] = []
        while count:
            self._wait_until(end)
            part = self._connection.recv(min(count, 1 << 20))
            if not part:
                raise EOFError("the other side closed the connection")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def _wait_until(self, end: float | None) -> None:
        remaining = None if end is None else end - time.monotonic()
        if remaining is not None and remaining <= 0:
            raise TimeoutError
        self._connection.settimeout(remaining)
