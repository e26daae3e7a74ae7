"""Runs code in a forked copy of this process, which the code cannot change."""

import contextlib
import ctypes
import os
import signal
import socket
import sys
import warnings
from collections.abc import Callable
from typing import Any, NoReturn

from memcalc.children.child import Channel
from memcalc.children.exit_reason import GARBLED, ending, oom_kills, told
from memcalc.errors import EstimateError, UsageError

_PR_SET_PDEATHSIG = 1


class CodeError(EstimateError):
    """The code in the copy raised something of its own, whose cause is not known."""

    def __init__(self, message: str, kind: str) -> None:
        super().__init__(message)
        self.kind = kind
        """Name of the exception's class."""


Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Answers a request."""


def forked(
    work: Callable[[Ask], dict[str, Any]],
    name: str,
    where: Callable[[], str] = str,
    serve: Ask | None = None,
) -> dict[str, Any]:
    """Run code in a copy of this process; what it changes is gone with the copy.

    Its result goes through JSON; bytes become base64. ``name``: what it is called in sentences;
    ``where`` says where the code is, as breadcrumbs do; this process has them too. The code is
    given a function that asks this process something, which ``serve`` answers.

    Raises:
        MemcalcError: as the code raised it.
        CodeError: the code raised something else.
        EstimateError: the copy died.
    """
    ours, theirs = socket.socketpair()
    kills = oom_kills()
    sys.stdout.flush()
    sys.stderr.flush()
    here = os.getpid()
    with warnings.catch_warnings():
        # Other threads do not live on in the copy; it waits for none of them.
        warnings.simplefilter("ignore", DeprecationWarning)
        copy = os.fork()
    if copy == 0:
        ours.close()
        die_with(here, signal.SIGKILL)
        _work(work, theirs, name, where)
    theirs.close()
    try:
        channel = Channel(ours)
        answer = channel.receive()
        while serve is not None and answer is not None and "asks" in answer:
            channel.send(_served(serve, answer["asks"], name))
            answer = channel.receive()
    except ValueError:
        os.kill(copy, signal.SIGKILL)
        raise EstimateError(GARBLED.format(name)) from None
    except BaseException:
        os.kill(copy, signal.SIGKILL)
        raise
    finally:
        ours.close()
        _, status = os.waitpid(copy, 0)
    if answer is None:
        raise EstimateError(
            ending(name, os.waitstatus_to_exitcode(status), kills=kills, where=where())
        )
    return _checked(answer, name)


def _served(serve: Ask, request: dict[str, Any], name: str) -> dict[str, Any]:
    try:
        return {"result": serve(request)}
    except Exception as error:
        return told(error, name, "")


def _checked(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an answer that is no error; raise one that is."""
    if "result" in answer:
        return dict(answer["result"])
    if "error" not in answer:
        raise EstimateError(GARBLED.format(name))
    if answer["exit_code"] == UsageError.exit_code:
        raise UsageError(answer["error"])
    if "kind" in answer:
        raise CodeError(answer["error"], answer["kind"])
    raise EstimateError(answer["error"])


def flush() -> None:
    """Write what was printed; the program may have closed its streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(ValueError, OSError, AttributeError):
            stream.flush()


def die_with(parent: int, number: int) -> None:
    """Have the kernel send a signal when the parent dies (Linux; elsewhere the sockets tell)."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:
        os._exit(1)


def _work(
    work: Callable[[Ask], dict[str, Any]], end: socket.socket, name: str, where: Callable[[], str]
) -> NoReturn:
    channel = Channel(end)

    def ask(request: dict[str, Any]) -> dict[str, Any]:
        channel.send({"asks": request})
        return _checked(channel.receive() or {}, name)

    try:
        try:
            answer = {"result": work(ask)}
        except BaseException as error:
            answer = told(error, name, where())
        flush()
        channel.send(answer)
    finally:
        # Nothing of the process that was copied is to be closed, flushed or written here.
        os._exit(0)
