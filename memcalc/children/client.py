"""The side that asks: starts a fork server, and asks one question of each of its forks."""

from __future__ import annotations

import contextlib
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

from memcalc.children.channel import Channel
from memcalc.children.exit_reason import GARBLED, ending, oom_kills, read_end
from memcalc.errors import MemcalcError, UsageError, sentence

_PATIENCE = 5.0
"""Seconds to wait for a killed process to exit."""


class ForkServer(contextlib.AbstractContextManager["ForkServer"]):
    """A process that forks a child for each question; the first one starts it. Thread-safe."""

    def __init__(
        self,
        failure: type[MemcalcError],
        environment: Mapping[str, str],
        *,
        first: Sequence[str] = (),
        control: socket.socket | None = None,
    ) -> None:
        """Start nothing yet.

        Args:
            failure: what is raised where a question fails.
            environment: variables of the server and its children.
            first: folders that lead the import path.
            control: leads to a server that runs already.
        """
        self._first = tuple(first)
        self._failure = failure
        self.environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None
        self._control = control
        self._starts = control is None
        self._noise = -1
        self._number = 0
        self._kills: int | None = None
        self._closed = False
        self._lock = threading.Lock()

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(
        self,
        module: str,
        name: str,
        request: dict[str, Any],
        *,
        hint: Sequence[str] = (),
        heard: Callable[[dict[str, Any]], None] = lambda event: None,
        tick: Callable[[], None] = lambda: None,
        interval: float = math.inf,
        timeout: float = math.inf,
    ) -> dict[str, Any]:
        """Run a job module on a request in a forked child; return its answer when it has ended.

        Args:
            module: the job module.
            name: what the fork is called in sentences.
            request: for the job module.
            hint: for the job module's ``warm``.
            heard: called with every event; a child that waits goes on when this returns.
            tick: called after every message, and at least every ``interval`` seconds.
            interval: see ``tick``.
            timeout: seconds after which the child is killed.

        Raises:
            TimeoutError: the answer took too long.
            UsageError: the job refuses the request.
            MemcalcError: ``failure``: no process starts, or the job failed or died (with a cause).
        """
        deadline = time.monotonic() + timeout
        number, channel = self._fork(module, name, hint)
        garbled, ended = False, ""
        try:
            _send(channel, {**self._child_settings(), "request": request})
            for message in _messages(channel, deadline, interval, tick):
                garbled |= message is _GARBLED
                if "event" in message:
                    _handle_event(message, heard, channel)
                elif "answer" in message or "error" in message:
                    return self._unpack_answer(message, name)
                elif ended := str(message.get("ended", "")):
                    break
            why = GARBLED.format(name) if garbled else ended or self._describe_exit()
            raise self._failure(why) from ChildProcessError()
        finally:
            if not ended:
                # A server that imports would not answer for seconds: Ctrl-C does not wait for it.
                interrupted = sys.exc_info()[0] is KeyboardInterrupt
                self._end(number, channel, 0.0 if interrupted else _PATIENCE)
            channel.end.close()

    def close(self) -> None:
        """End the server and its children; it cannot be started again."""
        with self._lock:
            self._closed = True
            self._stop()

    def _fork(self, module: str, name: str, hint: Sequence[str]) -> tuple[int, Channel]:
        """Ask the server to fork a child; return the child's number and the channel to it."""
        with self._lock:
            self._number += 1
            message = {"fork": self._number, "module": module, "name": name, "hint": hint}
            here, there = socket.socketpair()
            with there:
                given = [there.fileno(), *([2] if os.environ.get("MEMCALC_DEBUG") else [])]
                try:
                    if not self._submit(message, given) and not self._submit(message, given):
                        raise self._failure(self._describe_exit())
                except BaseException:
                    here.close()
                    raise
            return self._number, Channel(here)

    def _end(self, number: int, channel: Channel, patience: float) -> None:
        """Kill a child and all processes that it has started, and wait for their end."""
        with self._lock, contextlib.suppress(OSError):
            if self._control is not None:
                self._control.send(json.dumps({"end": number}).encode())
        with contextlib.suppress(TimeoutError):
            for message in _messages(channel, time.monotonic() + patience):
                if "ended" in message:
                    return

    def _child_settings(self) -> dict[str, Any]:
        """Return the environment variables, current folder and sys.path for a child."""
        given = {name: text for name, text in self.environment.items() if _is_utf8(name + text)}
        return {"environment": given, "folder": folder(), "path": [*self._first, *_sys_path()]}

    def _describe_exit(self) -> str:
        """Say in one sentence how the server ended, or that it does not answer."""
        code, noise = None, ""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(_PATIENCE)
            noise = read_end(self._noise)
        return ending("process that starts the runs", code, kills=self._kills, noise=noise)

    def _unpack_answer(self, message: dict[str, Any], name: str) -> dict[str, Any]:
        """Return the answer in a child's message, or raise the error that it reports."""
        answer = message.get("answer")
        if isinstance(answer, dict):
            return answer
        sentence = str(message.get("error", GARBLED.format(name)))
        if message.get("exit_code") == UsageError.exit_code:
            raise UsageError(sentence)
        raise self._failure(sentence)

    def _submit(self, message: dict[str, Any], given: list[int]) -> bool:
        """Send a request to the server, started if needed; return False if it has died."""
        if self._closed:
            raise self._failure("The process that starts the runs was closed.")
        if self._process is not None and self._process.poll() is not None:
            self._stop()
        if self._control is None and self._starts:
            self._start()
        if self._control is None:
            return False
        try:
            socket.send_fds(self._control, [json.dumps(message).encode()], given)
        except OSError:
            self._stop()
            return False
        return True

    def _start(self) -> None:
        """Start the server process."""
        try:
            self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            # A file, because a pipe that nobody reads would block a process that prints a lot.
            self._noise = os.memfd_create("noise")
            self._kills = oom_kills()
            with theirs:
                self._process = launch(theirs, self.environment, self._noise, self._first)
        except OSError as error:
            self._stop()
            raise self._failure(f"Cannot start a process: {error.strerror}.") from None

    def _stop(self) -> None:
        """Close the control socket, and end the server process if this one started it."""
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
    """Start a fork server, which dies with this process; ``first`` leads its import path.

    ``control``: a connected socket for requests; ``noise``: the descriptor that its standard error
    goes to.

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
        [sys.executable, "-P", "-m", "memcalc.children.fork_server", *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=None if os.environ.get("MEMCALC_DEBUG") else noise,
        pass_fds=[control.fileno()],
        env={**environment, "PYTHONPATH": os.pathsep.join([*first, *_sys_path()])},
        # Ctrl-C at a terminal reaches this process only.
        start_new_session=True,
    )


_GARBLED: dict[str, Any] = {}
"""Stands for a line that is no message."""


def _messages(
    channel: Channel,
    deadline: float,
    interval: float = math.inf,
    tick: Callable[[], None] = lambda: None,
) -> Iterator[dict[str, Any]]:
    """Yield messages from a child's socket until it closes, or raise TimeoutError."""
    while True:
        left = min(deadline - time.monotonic(), interval)
        if deadline <= time.monotonic():
            raise TimeoutError
        try:
            channel.end.settimeout(left if left < math.inf else None)
            message = channel.receive()
        except TimeoutError:
            tick()
            continue
        except ValueError:
            message = _GARBLED
        if message is None:
            return
        yield message
        tick()


def _handle_event(
    message: dict[str, Any], heard: Callable[[dict[str, Any]], None], channel: Channel
) -> None:
    """Pass an event to the callback ``heard``, and let a waiting child continue."""
    heard(message["event"])
    if message.get("waits"):
        _send(channel, {"go": True})


def _send(channel: Channel, message: dict[str, Any]) -> None:
    # If the child is gone, the next message says so.
    with contextlib.suppress(OSError):
        channel.end.settimeout(None)
        channel.send(message)


def _is_utf8(text: str) -> bool:
    """Return True if a text is valid UTF-8; a variable such as ``OLDPWD`` may hold any bytes."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _sys_path() -> list[str]:
    return [entry for entry in sys.path if isinstance(entry, str)]


def folder() -> str | None:
    """Return the current folder, or None if it is gone."""
    with contextlib.suppress(FileNotFoundError):
        return os.getcwd()
    return None
