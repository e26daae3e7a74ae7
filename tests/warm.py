"""The session's warm fork servers: tests ask them, where a user's process starts its own.

Importing PyTorch and transformers takes seconds, and forking what has imported them milliseconds.
The ``own_servers`` fixture gives a test servers of its own.
"""

import contextlib
import os
import secrets
import selectors
import socket
import subprocess
import sys
import threading

import memcalc.estimation.engine as engine_module
from memcalc.children.client import ForkServer
from memcalc.children.fork_server import _Server
from memcalc.errors import EstimateError, MemcalcError
from memcalc.measure.runs import runner

KINDS = ("engine", "measure")
"""One server has opened the stub driver; the other is for runs on this machine's devices."""
_NAME = "TESTS_WARM_SERVERS"
"""Environment variable by which workers of the session find its servers."""
_make_own = engine_module._make_server


def start():
    """Start the servers and let them import what tests need; returns their processes."""
    os.environ[_NAME] = f"memcalc-tests-{secrets.token_hex(8)}"
    started = [_start(kind) for kind in KINDS]
    for kind in KINDS:
        threading.Thread(target=_preload, args=(kind,), daemon=True).start()
    return started


def share():
    """Let this process ask the session's servers."""
    engine_module._make_server = _make_server
    runner.ForkServer = lambda failure, environment: _connect("measure", failure, environment)


def unshare():
    """Let this process start its own servers again."""
    engine_module._make_server = _make_own
    runner.ForkServer = ForkServer


def _start(kind):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as door:
        door.bind(_address(kind))
        door.listen(64)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", __name__, str(door.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[door.fileno()],
            env={
                **os.environ,
                "TRANSFORMERS_VERBOSITY": "error",
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            start_new_session=True,
        )


def _address(kind):
    return f"\0{os.environ[_NAME]}-{kind}"


def _connect(kind, failure, environment):
    control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    control.connect(_address(kind))
    return ForkServer(failure, environment, control=control)


def _make_server(releases, gpu, alone):
    own = _make_own(releases, gpu, alone)
    # Other releases have a process of their own, as has what asked for its GPU when imported.
    if alone or own._first:
        return own
    return _connect("engine", EstimateError, own.environment)


def _preload(kind):
    # A session of few tests ends before this does.
    with contextlib.suppress(MemcalcError), _connect(kind, MemcalcError, os.environ) as server:
        server.ask("tests.preload", "preload", {}, hint=(kind,))


def main(door, asker):
    """Serve all processes of a session."""
    server = _Server(asker)
    door = socket.socket(fileno=door)

    def accept(_):
        server.open(door.accept()[0])

    server._selector.register(door, selectors.EVENT_READ, accept)
    server._askers += 1  # The door stays open until the session ends this process.
    server.serve()


if __name__ == "__main__":
    import gc

    gc.disable()
    main(*map(int, sys.argv[1:]))
