"""Messages between processes: JSON lines over a socket."""

import socket
from typing import Any

import msgspec

_CHUNK = 1 << 18


class Channel:
    """An end of a conversation over a socket."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._buffer = bytearray()
        self._searched = 0

    def send(self, message: dict[str, Any]) -> None:
        """Send a dict as one JSON line; bytes become base64.

        Raises:
            OSError: the other end is closed.
        """
        self.end.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Wait for the next message and return it, or None if the other end is closed.

        Raises:
            TimeoutError: the socket's time is up; nothing is lost.
            ValueError: a line is no message.
        """
        while (at := self._buffer.find(b"\n", self._searched)) < 0:
            self._searched = len(self._buffer)
            try:
                chunk = self.end.recv(_CHUNK)
            except ConnectionError:
                return None
            if not chunk:
                return None
            self._buffer += chunk
        line = bytes(self._buffer[:at])
        del self._buffer[: at + 1]
        self._searched = 0
        if not line.strip():
            return {}
        try:
            message = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ValueError(str(error)) from None
        if not isinstance(message, dict):
            raise ValueError("not a message")
        return message
