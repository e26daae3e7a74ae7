"""The main loop of a child: it answers JSON lines in order and turns errors into sentences."""

import contextlib
import importlib
import mmap
import os
import socket
import struct
import sys
from typing import Any

import msgspec

from memcalc.children.exit_reason import told

_CHUNK = 1 << 18
_CREDENTIALS = "3i"
"""Process, user and group, as the kernel gives them (unix(7))."""


class Channel:
    """One end of a conversation."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end
        self._buffer = bytearray()
        self._searched = 0

    def send(self, message: dict[str, Any]) -> None:
        """Say something; bytes become base64.

        Raises:
            OSError: nobody listens.
        """
        self.end.sendall(msgspec.json.encode(message) + b"\n")

    def receive(self) -> dict[str, Any] | None:
        """Hear the next message; ``None``: there will be none.

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


def is_of_this_user(end: socket.socket) -> bool:
    """Return whether the process at the other end of a Unix socket is one of this user."""
    size = struct.calcsize(_CREDENTIALS)
    given = end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    _, user, _ = struct.unpack(_CREDENTIALS, given)
    return bool(user == os.geteuid())


SIZE = 512


class Breadcrumbs:
    """Remembers the module that runs; cheap enough to do for every module.

    Made by the parent before it forks: both see the same memory.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SIZE)

    def drop(self, module: str) -> None:
        """Remember this place, forget the last."""
        text = module.encode()[: SIZE - 1] + b"\0"
        self._map[: len(text)] = text

    def where(self) -> str:
        """The last place in words, such as `` in model.layers.0``; empty if unknown."""
        module, _, _ = self._map[:].partition(b"\0")
        return f" in {module.decode(errors='replace')}" if module else ""

    def close(self) -> None:
        """Give the memory back."""
        self._map.close()


class Speaker:
    """Tells the asker how a job goes, while it goes."""

    def __init__(self, channel: Channel, job: int) -> None:
        self._channel = channel
        self._job = job

    def tell(self, **event: Any) -> None:
        """Something has happened."""
        self._send({"job": self._job, "event": event})

    def wait(self, **event: Any) -> None:
        """Something has happened; go on when the asker has looked at it."""
        self._send({"job": self._job, "event": event, "waits": True})
        while (message := self._channel.receive()) is not None:
            if message.get("go") == self._job:
                return
        os._exit(1)

    def _send(self, message: dict[str, Any]) -> None:
        try:
            self._channel.send(message)
        except OSError:
            # Nobody listens any more; a model's code must not take this for an error of its own.
            os._exit(1)


def serve(end: socket.socket, module: str, name: str, breadcrumbs: Breadcrumbs) -> None:
    """Answer requests until the client closes."""
    channel = Channel(end)
    place = channel.receive()
    if place is None:
        return
    _settle(place)
    work = None
    while (request := channel.receive()) is not None:
        job = request.pop("job", None)
        if job is None:
            continue
        breadcrumbs.drop("")
        try:
            if work is None:
                work = importlib.import_module(module).answer_for(breadcrumbs)
            said = {"answer": work(request, Speaker(channel, job))}
        except BaseException as error:
            said = told(error, name, breadcrumbs.where())
        with contextlib.suppress(ValueError, OSError):
            # What ran here may have closed it.
            sys.stdout.flush()
        try:
            channel.send({"job": job, **said})
        except OSError:
            # What ran here may have closed that as well; how this process ends says the rest.
            os._exit(1)


def _settle(place: dict[str, Any]) -> None:
    """Be where the asker is; without an environment, in that of whoever started this process."""
    if place["environment"] is not None and dict(os.environ) != place["environment"]:
        os.environ.clear()
        os.environ.update(place["environment"])
    if place["folder"] is not None:
        os.chdir(place["folder"])
    sys.path[:] = place["path"]
