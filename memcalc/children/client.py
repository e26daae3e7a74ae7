"""The client side: starts a parent process, which forks children, and asks them."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from memcalc.children.child import Channel, is_of_this_user
from memcalc.children.exit_reason import GARBLED, ending, noise_of
from memcalc.errors import MemcalcError, UsageError, sentence

_PATIENCE = 5.0
"""Seconds to wait for a killed process to exit."""
WARM = "MEMCALC_WARM"
"""Environment variable with the abstract socket of a parent that runs already; its kind follows.

Tests set it, so that PyTorch is imported once; ``launch`` starts such a parent.
"""


class Parent(contextlib.AbstractContextManager["Parent"]):
    """A process that forks children; it starts with the first child. Thread-safe."""

    def __init__(
        self,
        failure: type[MemcalcError],
        environment: Mapping[str, str],
        *,
        kind: str = "",
        first: Sequence[str] = (),
    ) -> None:
        """Prepare; nothing is started yet.

        ``failure`` is raised where a job fails; ``kind`` names a parent of ``WARM`` by what it has
        loaded; folders of ``first`` lead the import path.
        """
        self.first = tuple(first)
        self._kind = kind
        self.failure = failure
        self.environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._noise = -1
        self._number = 0
        self._closed = False
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    def child(self, module: str, name: str, *, hint: str = "") -> Child:
        """Fork a child.

        Raises:
            MemcalcError: ``failure``, where no process can be started.
        """
        with self._lock:
            self._number += 1
            message = {"fork": self._number, "module": module, "name": name, "hint": hint}
            here, there = socket.socketpair()
            with there:
                given = [there.fileno(), *([2] if os.environ.get("MEMCALC_DEBUG") else [])]
                try:
                    if not self._sent(message, given) and not self._sent(message, given):
                        raise self.failure(self.how_it_ended())
                except BaseException:
                    here.close()
                    raise
            return Child(self, self._number, here, name)

    def end(self, number: int) -> None:
        """Kill a child and all processes that it has started."""
        with self._lock, contextlib.suppress(OSError):
            if self._control is not None:
                self._control.send(json.dumps({"end": number}).encode())

    def close(self) -> None:
        """End the process and its children; no more can be forked."""
        with self._lock:
            self._closed = True
            self._stop()

    def how_it_ended(self) -> str:
        """One sentence: how the process ended, or that it does not answer."""
        code, noise = None, ""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_PATIENCE)
            noise = noise_of(self._noise)
        return ending("process that starts the runs", code, noise=noise)

    def _sent(self, message: dict[str, Any], given: list[int]) -> bool:
        """Send to the process; ``False``: it was dead, and the next call starts another."""
        if self._closed:
            raise self.failure("The process that starts the runs was closed.")
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._control is None:
            self._start()
        assert self._control is not None
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], given)
        except OSError:
            self._stop()
            return False
        return True

    def _start(self) -> None:
        known = "" if self.first else self.environment.get(WARM)
        try:
            if known:
                self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                self._control.connect(f"\0{known}{self._kind}")
                if not is_of_this_user(self._control):
                    # Names of abstract sockets are anybody's to take.
                    raise PermissionError(errno.EPERM, f"{WARM} is a process of another user")
                return
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # A file, because a pipe that nobody reads would block a process that prints a lot.
            self._noise = os.memfd_create("noise")
            with theirs:
                self._process = launch(theirs, self.environment, self._noise, self.first)
        except OSError as error:
            self._stop()
            raise self.failure(f"Cannot start a process: {error.strerror}.") from None

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        process, self._process = self._process, None
        if process is not None:
            process.terminate()
            try:
                process.wait(_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._noise >= 0:
            os.close(self._noise)
            self._noise = -1


def launch(
    control: socket.socket,
    environment: Mapping[str, str],
    noise: int,
    first: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Start a parent, which dies with this process; folders of ``first`` lead its import path.

    ``control``: a connected socket for requests, or one that listens for clients; ``noise``: the
    descriptor that its standard error goes to.

    Raises:
        UsageError: the current folder is gone.
    """
    try:
        os.getcwd()  # PyTorch's libraries do not load where it is gone.
    except FileNotFoundError as error:
        raise UsageError(sentence(error)) from None
    numbers = control.fileno(), os.getpid()
    return subprocess.Popen(
        # -P: modules are imported from where this process imports, not from the current folder.
        [sys.executable, "-P", "-m", "memcalc.children.parent", *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("MEMCALC_DEBUG") else noise,
        pass_fds=[control.fileno()],
        env={**environment, "PYTHONPATH": os.pathsep.join([*first, *_path()])},
        # Ctrl-C at a terminal reaches this process only.
        start_new_session=True,
    )


class Child:
    """A child process that does one job after another; one thread asks, another may end it."""

    def __init__(self, parent: Parent, number: int, end: socket.socket, name: str) -> None:
        self.alive = True
        self._parent = parent
        self._number = number
        self._channel = Channel(end)
        self._name = name
        self._job = 0
        self._garbled = False
        self._asker: int | None = None
        """The thread that waits for an answer."""
        path = [*parent.first, *_path()]
        given = {name: text for name, text in parent.environment.items() if _is_utf8(name + text)}
        self._send({"environment": given, "folder": folder(), "path": path})

    def ask(
        self,
        request: dict[str, Any],
        *,
        heard: Callable[[dict[str, Any]], None] = lambda event: None,
        tick: Callable[[], None] = lambda: None,
        interval: float = math.inf,
        timeout: float = math.inf,
    ) -> dict[str, Any]:
        """Have a job done.

        Args:
            request: for the job module.
            heard: called with every event; a child that waits goes on when this returns.
            tick: called after every message, and at least every ``interval``.
            interval: seconds.
            timeout: seconds after which the child is killed.

        Raises:
            TimeoutError: the job took too long.
            UsageError: the job refuses the request.
            MemcalcError: the parent's ``failure``: the job failed, or the child died.
        """
        self._job += 1
        self._garbled = False
        self._asker = threading.get_ident()
        done = False
        try:
            self._send({"job": self._job, **request})
            for message in self._messages(time.monotonic() + timeout, interval, tick):
                if "ended" in message:
                    self._close()
                    raise self._parent.failure(self._reason(str(message["ended"])))
                if message.get("job") != self._job:
                    continue
                if "event" in message:
                    heard(message["event"])
                    if message.get("waits"):
                        self._send({"go": self._job})
                    continue
                done = True
                return self._answer_in(message)
            self._close()
            raise self._parent.failure(self._reason(self._parent.how_it_ended()))
        finally:
            if not done:
                # The job may still be running, and nobody waits for it.
                self.end()
            self._asker = None

    def end(self) -> None:
        """Kill the child, and wait for its end unless another thread waits for it."""
        if not self.alive:
            return
        self._parent.end(self._number)
        if self._asker not in (None, threading.get_ident()):
            return  # Whoever waits for an answer hears of it, and closes.
        with contextlib.suppress(TimeoutError):
            for message in self._messages(time.monotonic() + _PATIENCE, math.inf, lambda: None):
                if "ended" in message:
                    break
        self._close()

    def _messages(
        self, deadline: float, interval: float, tick: Callable[[], None]
    ) -> Iterator[dict[str, Any]]:
        while True:
            left = min(deadline - time.monotonic(), interval)
            if deadline <= time.monotonic():
                raise TimeoutError
            try:
                self._channel.end.settimeout(left if left < math.inf else None)
                message = self._channel.receive()
            except TimeoutError:
                tick()
                continue
            except OSError:
                if self.alive:
                    raise
                return  # Another thread has heard of its end meanwhile, and closed.
            except ValueError:
                self._garbled = True
                continue
            if message is None:
                return
            yield message
            tick()

    def _answer_in(self, message: dict[str, Any]) -> dict[str, Any]:
        answer = message.get("answer")
        if isinstance(answer, dict):
            return answer
        sentence = str(message.get("error", GARBLED.format(self._name)))
        if message.get("exit_code") == UsageError.exit_code:
            raise UsageError(sentence)
        raise self._parent.failure(sentence)

    def _reason(self, sentence: str) -> str:
        return GARBLED.format(self._name) if self._garbled else sentence

    def _send(self, message: dict[str, Any]) -> None:
        # If the child is gone, the next message says so.
        with contextlib.suppress(OSError):
            self._channel.end.settimeout(None)
            self._channel.send(message)

    def _close(self) -> None:
        self.alive = False
        self._channel.end.close()


def _is_utf8(text: str) -> bool:
    """Return whether a text can be sent; a variable such as ``OLDPWD`` may hold any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _path() -> list[str]:
    return [entry for entry in sys.path if isinstance(entry, str)]


def folder() -> str | None:
    """The current one; ``None``: it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return os.getcwd()
    return None
