"""The process that forks children: it imports heavy packages once and survives a child's crash.

Importing PyTorch and transformers takes seconds; forking what has imported them takes
milliseconds. It runs no code of a user's and never touches CUDA, so that each child makes its own
context. The asking process holds one end of a control socket: when it closes, its children end. A
child also holds one, and asks through it for its own forks.
"""

import contextlib
import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from typing import NoReturn

import msgspec

from memcalc.children import keeper
from memcalc.children.child import Breadcrumbs, answer_once, die_with
from memcalc.children.exit_reason import ending, oom_kills, read_end

_LONGEST = 1 << 16
"""Bytes of a request on a control socket."""


def main(control: int, asker: int) -> None:
    """Run the fork server: fork children on request until the last client closes."""
    # What is imported here stays: looking for garbage in it takes a sixth of the time of importing.
    gc.disable()
    server = _Server(asker)
    server.open(socket.socket(fileno=control))
    server.serve()
    server.leave()


class _Request(msgspec.Struct):
    """A request to fork a child under this number, or to end it."""

    fork: int = 0
    end: int = 0
    module: str = ""
    name: str = ""
    hint: tuple[str, ...] = ()


class _Child(msgspec.Struct):
    """A live child, and where to report its end."""

    asker: socket.socket
    """The control socket of who asked for it."""
    number: int
    """The child's number on this control socket."""
    name: str
    end: socket.socket
    control: socket.socket
    """Our end of its own control socket."""
    noise: int
    breadcrumbs: Breadcrumbs
    kills: int | None


class _Server:
    """All children of this process, and who asks for more."""

    def __init__(self, asker: int) -> None:
        keeper.adopt_orphans()
        self._living: dict[int, _Child] = {}
        self._helpers: set[int] = set()
        """Processes that imported packages started."""
        self._askers = 0
        """Control sockets of other processes than children."""
        self._selector = selectors.DefaultSelector()
        self._alarm = os.pipe()
        for end in self._alarm:
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._alarm[1], warn_on_full_buffer=False)
        self._selector.register(self._alarm[0], selectors.EVENT_READ, self._reap)
        signal.signal(signal.SIGUSR1, lambda *_: self._leave_if_orphaned(asker))
        die_with(asker, signal.SIGUSR1)

    def open(self, control: socket.socket) -> None:
        """Handle requests of a connected client."""
        self._selector.register(control, selectors.EVENT_READ, self._receive)
        self._askers += 1

    def serve(self) -> None:
        """Handle requests and exits until the last client has closed."""
        while self._askers:
            for key, _ in self._selector.select():
                if (
                    self._selector.get_map().get(key.fd) == key
                ):  # It may have been closed meanwhile.
                    key.data(key.fileobj)

    def leave(self) -> NoReturn:
        """Kill all children and exit."""
        try:
            # A signal may have come while a child that had ended was being cleared away.
            with contextlib.suppress(OSError):
                self._end(list(self._living))
            keeper.end_children()
        finally:
            os._exit(0)

    def _leave_if_orphaned(self, asker: int) -> None:
        """Exit if the parent is gone; the kernel also signals the end of one of its threads."""
        if os.getppid() != asker:
            self.leave()

    def _receive(self, control: socket.socket) -> None:
        """Read a request to fork or end a child from a control socket, and carry it out."""
        try:
            line, descriptors, _, _ = socket.recv_fds(control, _LONGEST, 2)
        except ConnectionError:
            line, descriptors = b"", []
        if not line:
            self._askers -= all(one.control is not control for one in self._living.values())
            self._close(control)
            return
        try:
            request = msgspec.json.decode(line, type=_Request)
        except msgspec.MsgspecError:
            request = _Request()
        if request.fork and descriptors:
            self._fork(control, request, descriptors)
        elif request.end:
            ours = (control, request.end)
            self._end([p for p, one in self._living.items() if (one.asker, one.number) == ours])

    def _close(self, control: socket.socket) -> None:
        """Close a control socket, and end the children forked for it."""
        if control.fileno() >= 0:
            self._selector.unregister(control)
            control.close()
            self._end([pid for pid, one in self._living.items() if one.asker is control])

    def _fork(self, asker: socket.socket, request: _Request, given: list[int]) -> None:
        """Import what a job needs, then fork a child that answers one request."""
        if not self._living:
            # Imports of compiled code let no handler run, for seconds on a machine under load.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        # Whatever goes wrong here goes wrong in the child as well, and is said there.
        with contextlib.suppress(Exception):
            importlib.import_module(request.module).warm(*request.hint)
        signal.signal(signal.SIGTERM, lambda *_: self.leave())
        self._helpers = keeper.list_children() - self._living.keys()
        gc.freeze()
        control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        one = _Child(
            asker=asker,
            number=request.fork,
            name=request.name,
            end=socket.socket(fileno=given[0]),
            control=control,
            noise=given[1] if len(given) > 1 else os.memfd_create("noise"),
            breadcrumbs=Breadcrumbs(),
            kills=oom_kills(),
        )
        self._selector.register(control, selectors.EVENT_READ, self._receive)
        with theirs:
            try:
                pid = os.fork()
            except OSError as error:
                why = f"Cannot start a process for the {one.name}: {error.strerror}."
                self._report_exit(one, why)
                return
            if pid == 0:
                self._run_child(one, theirs, request.module)
        self._living[pid] = one

    def _run_child(self, one: _Child, control: socket.socket, module: str) -> NoReturn:
        """Run in the new child: answer one request and exit."""
        try:
            server = os.getppid()
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1):
                signal.signal(number, signal.SIG_DFL)
            os.setpgid(0, 0)
            keeper.adopt_orphans()
            die_with(server, signal.SIGKILL)
            # Whatever model code prints is not ours to answer with.
            os.dup2(one.noise, 1)
            os.dup2(one.noise, 2)
            self._close_in_child(one)
            gc.enable()
            # When garbage is looked for shall not depend on what was imported before.
            gc.collect()
            # Nor shall it look through the libraries each time.
            gc.freeze()
            answer_once(one.end, control, module, one.name, one.breadcrumbs)
            sys.stderr.flush()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
        finally:
            os._exit(1)

    def _close_in_child(self, one: _Child) -> None:
        """Close the descriptors of the server and of its other children."""
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
            found, status = os.waitpid(pid, os.WNOHANG) if pid in self._living else (0, 0)
            if found:
                self._handle_exit(pid, status)

    def _end(self, pids: list[int]) -> None:
        """Kill children by process ID, and report how each ended."""
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        for pid in pids:
            if pid in self._living:  # The end of a child ends those that it asked for.
                self._handle_exit(pid, os.waitpid(pid, 0)[1])

    def _handle_exit(self, pid: int, status: int) -> None:
        one = self._living.pop(pid)
        # Processes that the child's own code may have started.
        keeper.end_children({*self._living, *self._helpers})
        where, noise = one.breadcrumbs.describe(), read_end(one.noise)
        code = os.waitstatus_to_exitcode(status)
        self._report_exit(one, ending(one.name, code, kills=one.kills, where=where, noise=noise))

    def _report_exit(self, one: _Child, sentence: str) -> None:
        """Send the process that asked a sentence on a child's end, and close its sockets."""
        one.end.setblocking(False)
        with contextlib.suppress(OSError):
            # A child that died while it spoke left half a line.
            one.end.send(b"\n" + msgspec.json.encode({"ended": sentence}) + b"\n")
        one.end.close()
        os.close(one.noise)
        one.breadcrumbs.close()
        self._close(one.control)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
