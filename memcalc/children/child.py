"""A child of a fork server: it answers one question and turns errors into sentences."""

import contextlib
import ctypes
import importlib
import mmap
import os
import socket
import sys
from typing import Any

from memcalc.children.channel import Channel
from memcalc.children.client import ForkServer
from memcalc.children.exit_reason import serialize_error
from memcalc.errors import EstimateError

_PR_SET_PDEATHSIG = 1


def die_with(parent: int, number: int) -> None:
    """Let the kernel signal this process when its parent dies; exit if it is dead already."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def flush() -> None:
    """Flush standard output and error; ignore errors, such as a closed stream."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def show(text: str) -> None:
    """Print a text to standard error; ignore errors, such as a closed stream or a full disk."""
    with contextlib.suppress(Exception):
        print(text, end="", file=sys.stderr, flush=True)


SIZE = 512


class Breadcrumbs:
    """Remembers the module that runs; cheap enough to do for every module.

    Made by the fork server before it forks: both see the same memory.
    """

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, SIZE)

    def drop(self, module: str) -> None:
        """Record the name of the module that runs now, in place of the last one."""
        text = module.encode()[: SIZE - 1] + b"\0"
        self._map[: len(text)] = text

    def describe(self) -> str:
        """Return the last module in words, such as `` in model.layers.0``; empty if unknown."""
        module, _, _ = self._map[:].partition(b"\0")
        return f" in {module.decode(errors='replace')}" if module else ""

    def close(self) -> None:
        """Release the shared memory."""
        self._map.close()


class Speaker:
    """Sender of a job's progress to the asker."""

    def __init__(self, channel: Channel, breadcrumbs: Breadcrumbs, server: ForkServer) -> None:
        self._channel = channel
        self.breadcrumbs = breadcrumbs
        self.server = server
        """The server that forked this child, which it may ask."""

    def tell(self, **event: Any) -> None:
        """Send an event to the process that asked."""
        self._send({"event": event})

    def wait(self, **event: Any) -> None:
        """Send an event to the process that asked, and block until it has handled the event."""
        self._send({"event": event, "waits": True})
        if self._channel.receive() is None:
            os._exit(1)

    def _send(self, message: dict[str, Any]) -> None:
        """Send a message to the process that asked; exit if it is gone."""
        try:
            self._channel.send(message)
        except OSError:
            # Nobody listens any more; a model's code must not take this for an error of its own.
            os._exit(1)


def answer_once(
    end: socket.socket, control: socket.socket, module: str, name: str, breadcrumbs: Breadcrumbs
) -> None:
    """Read one request from a socket, run the job module on it, and send back the result."""
    channel = Channel(end)
    place = channel.receive()
    if place is None:
        return
    _copy_asker_settings(place)
    server = ForkServer(EstimateError, place["environment"], control=control)
    speaker = Speaker(channel, breadcrumbs, server)
    try:
        job = importlib.import_module(module)
        said = {"answer": job.answer(place["request"], speaker)}
    except BaseException as error:
        said = serialize_error(error, name, breadcrumbs.describe())
    flush()
    try:
        channel.send(said)
    except OSError:
        # What ran here may have closed that as well; how this process ends says the rest.
        os._exit(1)


def _copy_asker_settings(place: dict[str, Any]) -> None:
    """Copy environment variables, current folder and sys.path from the asking process."""
    if dict(os.environ) != place["environment"]:
        os.environ.clear()
        os.environ.update(place["environment"])
    if place["folder"] is not None:
        os.chdir(place["folder"])
    sys.path[:] = place["path"]
