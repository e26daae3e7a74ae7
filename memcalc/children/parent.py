"""The process that forks children: it imports heavy packages once and survives a child's crash.

Importing PyTorch and transformers takes seconds; forking what has imported them takes
milliseconds. It runs no code of a user's and never touches CUDA, so that each child makes a
context of its own. Whoever asks holds one end of a control socket: closed, its children end.
"""

import contextlib
import gc
import importlib
import json
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import Any

import msgspec

from memcalc.children import child
from memcalc.children.child import Breadcrumbs
from memcalc.children.exit_reason import ending, noise_of, oom_kills
from memcalc.children.fork import die_with

_LONGEST = 1 << 16


def main(control: int, asker: int) -> None:
    """Fork children until the client closes."""
    # What is imported here stays: looking for garbage in it takes a sixth of the time of importing.
    gc.disable()
    family = _Family()
    signal.signal(signal.SIGTERM, lambda *_: family.leave())
    signal.signal(signal.SIGUSR1, lambda *_: family.leave_without(asker))
    die_with(asker, signal.SIGUSR1)
    family.open(socket.socket(fileno=control))
    family.serve()
    family.leave()


class _Child(msgspec.Struct):
    """One that lives, and what is needed to tell of its end."""

    control: socket.socket
    number: int
    """Among those of this control socket."""
    name: str
    end: socket.socket
    noise: int
    breadcrumbs: Breadcrumbs
    kills: int | None


class _Family:
    """All children of this process."""

    def __init__(self) -> None:
        self._living: dict[int, _Child] = {}
        self._doors = 0
        self._selector = selectors.DefaultSelector()
        self._alarm = os.pipe()
        for end in self._alarm:
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._alarm[1], warn_on_full_buffer=False)
        self._selector.register(self._alarm[0], selectors.EVENT_READ, self._reap)

    def open(self, door: socket.socket) -> None:
        """Listen to one who asks, or to a socket on which askers arrive."""
        arrivals = door.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        self._selector.register(door, selectors.EVENT_READ, self._admit if arrivals else self._hear)
        self._doors += 1

    def serve(self) -> None:
        while self._doors:
            for key, _ in self._selector.select():
                key.data(key.fileobj)

    def leave(self) -> None:
        try:
            self._end(list(self._living))
        finally:
            os._exit(0)

    def leave_without(self, asker: int) -> None:
        """Leave if the asker is gone; the kernel also tells of the end of one of its threads."""
        if os.getppid() != asker:
            self.leave()

    def _admit(self, door: socket.socket) -> None:
        arrived = door.accept()[0]
        if child.is_of_this_user(arrived):
            self.open(arrived)
        else:
            arrived.close()

    def _hear(self, control: socket.socket) -> None:
        try:
            line, descriptors, _, _ = socket.recv_fds(control, _LONGEST, 2)
        except ConnectionError:
            line, descriptors = b"", []
        if not line:
            self._selector.unregister(control)
            self._doors -= 1
            self._end([pid for pid, one in self._living.items() if one.control is control])
            control.close()
            return
        message = json.loads(line)
        if "fork" in message:
            self._fork(control, message, descriptors)
        else:
            ours = (control, message["end"])
            self._end([p for p, one in self._living.items() if (one.control, one.number) == ours])

    def _fork(self, control: socket.socket, message: dict[str, Any], given: list[int]) -> None:
        end = socket.socket(fileno=given[0])
        noise = given[1] if len(given) > 1 else os.memfd_create("noise")
        # Whatever goes wrong here goes wrong in the child as well, and is said there.
        with contextlib.suppress(Exception):
            importlib.import_module(message["module"]).warm(message["hint"])
        gc.freeze()
        one = _Child(
            control=control,
            number=message["fork"],
            name=message["name"],
            end=end,
            noise=noise,
            breadcrumbs=Breadcrumbs(),
            kills=oom_kills(),
        )
        try:
            pid = os.fork()
        except OSError as error:
            self._farewell(one, f"Cannot start a process for the {one.name}: {error.strerror}.")
            return
        if pid == 0:
            self._be(one, message["module"])
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        self._living[pid] = one

    def _be(self, one: _Child, module: str) -> None:
        """What the child does; it never returns."""
        try:
            parent = os.getppid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)
            die_with(parent, signal.SIGKILL)
            # Whatever model code prints is not ours to answer with.
            os.dup2(one.noise, 1)
            os.dup2(one.noise, 2)
            self._let_go_of_others(one)
            gc.enable()
            # When garbage is looked for shall not depend on what was imported before.
            gc.collect()
            # Nor shall it look through the libraries each time.
            gc.freeze()
            child.serve(one.end, module, one.name, one.breadcrumbs)
            sys.stderr.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _let_go_of_others(self, one: _Child) -> None:
        for key in list(self._selector.get_map().values()):
            if isinstance(key.fileobj, socket.socket):
                key.fileobj.close()
        self._selector.close()
        for descriptor in (*self._alarm, one.noise):
            os.close(descriptor)
        for other in self._living.values():
            other.end.close()
            os.close(other.noise)

    def _reap(self, alarm: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(alarm, 1 << 12)
        for pid in list(self._living):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._gone(pid, status)

    def _end(self, pids: list[int]) -> None:
        for pid in pids:
            _kill_group(pid)
        for pid in pids:
            self._gone(pid, os.waitpid(pid, 0)[1])

    def _gone(self, pid: int, status: int) -> None:
        # Processes that the child's own code may have started.
        _kill_group(pid)
        one = self._living.pop(pid)
        where, noise = one.breadcrumbs.where(), noise_of(one.noise)
        code = os.waitstatus_to_exitcode(status)
        self._farewell(one, ending(one.name, code, kills=one.kills, where=where, noise=noise))

    def _farewell(self, one: _Child, sentence: str) -> None:
        """The last word; whoever does not listen sees the socket's end."""
        one.end.setblocking(False)
        with contextlib.suppress(OSError):
            # A child that died while it spoke left half a line.
            one.end.send(b"\n" + msgspec.json.encode({"ended": sentence}) + b"\n")
        one.end.close()
        os.close(one.noise)
        one.breadcrumbs.close()


def _kill_group(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
