"""A job module that does what it is told, and imports nothing heavy."""

import os
import signal
import subprocess
import sys
import time

WARMED = []


def warm(*hint):
    WARMED.append((*hint, os.getpid()))


def answer(request, speaker):
    speaker.breadcrumbs.drop("layer.3")
    return {"did": request["do"], **(globals()[request["do"]](request, speaker) or {})}


def asks(request, speaker):
    """What forks of its server say, of whatever kind, one after the other."""
    said = [speaker.server.ask(__name__, "fork of a fork", one) for one in request["requests"]]
    return {"said": said, "parent": os.getppid()}


def facts(request, speaker):
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "folder": os.getcwd(),
        "mine": os.environ.get("MINE"),
        "warmed": WARMED,
        "open": sorted(int(name) for name in os.listdir("/proc/self/fd")),
    }


def echo(request, speaker):
    return {"said": request["text"]}


def counts(request, speaker):
    for number in range(3):
        speaker.tell(number=number)
    speaker.wait(number="last")
    return {"gone on": True}


def waits(request, speaker):
    speaker.wait(number=0)
    return {"gone on": True}


def fails(request, speaker):
    raise ValueError("of its\nown")


def refuses(request, speaker):
    from memcalc.errors import UsageError

    raise UsageError("Ask otherwise.")


def recurses(request, speaker):
    return recurses(request, speaker)


def exits(request, speaker):
    sys.exit(0)


def interrupts(request, speaker):
    raise KeyboardInterrupt


def leaves(request, speaker):
    print("last words", file=sys.stderr, flush=True)
    os._exit(request.get("code", 0))


def dies(request, speaker):
    os.kill(os.getpid(), signal.Signals[request["signal"]])


def hangs(request, speaker):
    time.sleep(997)


def spawns(request, speaker):
    made = subprocess.Popen(["sleep", "998"], start_new_session=True)
    speaker.tell(pid=made.pid, own=os.getpid())
    time.sleep(999)


def babbles(request, speaker):
    for number in range(3, 64):
        try:
            os.write(number, request.get("rubbish", "{rubbish\n[1]\n").encode())
        except OSError:
            continue
    if request.get("and leaves"):
        os._exit(0)


def floods(request, speaker):
    for _ in range(100):
        print("x" * 10_000, file=sys.stderr)
        print("y" * 10_000)
