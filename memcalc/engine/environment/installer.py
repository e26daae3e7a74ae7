"""uv or pip, asked to install packages into a folder."""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from memcalc.children import command
from memcalc.errors import EstimateError

_UV_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_NO_INDEX")
_NO_NETWORK = re.compile(
    r"name resolution|connection (broken|refused|reset|aborted)|error sending request|"
    r"timed out|unreachable|SSLError|certificate verify|ProxyError|Could not fetch URL",
    re.IGNORECASE,
)
_ABSENT = re.compile(r"No matching distribution|ResolutionImpossible|No solution found")
_FULL = "No space left on device"
_POLL = 0.25
PLAIN = "installed without the machine's own constraints and find-links for packages"
"""What is said of an installation that did not follow them."""


class Tool(msgspec.Struct, frozen=True):
    """An installer on this machine."""

    name: Literal["uv", "pip"]
    command: tuple[str, ...]


class Failure(msgspec.Struct, frozen=True):
    """Why an installer gave up."""

    said: str
    full: bool = False
    """The disk has no room."""
    network: bool = False
    """No index could be reached."""
    absent: bool = False
    """The indexes have no such wheel for this Python."""


def tool() -> Tool:
    """The installer on this machine: pip, or uv where pip is not or uv is told of an index.

    Raises:
        EstimateError: there is none.
    """
    found, pip = uv(), importlib.util.find_spec("pip") is not None
    if found and (not pip or any(os.environ.get(name) for name in _UV_INDEX)):
        return Tool("uv", found)
    if pip:
        return Tool("pip", (sys.executable, "-m", "pip"))
    raise EstimateError(
        f"Neither uv nor pip is here to fetch packages: type {sys.executable} -m ensurepip once."
    )


def uv() -> tuple[str, ...]:
    """Return the command of uv on this machine; empty: there is none."""
    if (path := shutil.which("uv")) is not None:
        return (path,)
    return (sys.executable, "-m", "uv") if importlib.util.find_spec("uv") else ()


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """What is to be installed, without dependencies."""

    requirements: tuple[str, ...]
    target: Path
    scratch: Path
    """A folder on the same disk for what is downloaded: a disk in memory may not hold it.

    The folder that it is in goes with it, should this process die."""
    large: bool = False
    """Not to be kept a second time in pip's cache."""
    extra_index: str | None = None
    """Asked besides those of the machine's settings."""


def install(job: Job, tool: Tool, *, plain: bool, watch: Callable[[], None]) -> Failure | None:
    """Run an installer to its end; ``watch`` is called every now and then while it runs.

    With ``plain``, without the machine's constraints and find-links; its index and proxy stay.

    Returns:
        Why it failed; ``None``: it did not.
    """
    job.scratch.mkdir(parents=True, exist_ok=True)
    log = job.scratch / "installer.log"
    with open(log, "wb") as out:
        # Not in the user's folder: a pip.py there would be run in place of pip.
        process = command.start(
            _command(job, tool),
            job.scratch.parent,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            env=_variables(job, tool, plain),
            cwd=job.scratch,
        )
        try:
            while process.poll() is None:
                watch()
                time.sleep(_POLL)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
    if process.returncode == 0:
        return None
    return _failure(tool, process.returncode, log.read_text(encoding="utf-8", errors="replace"))


def _command(job: Job, tool: Tool) -> list[str]:
    common = ["--no-deps", "--only-binary", ":all:", "--target", str(job.target)]
    more = ["--extra-index-url", job.extra_index] if job.extra_index else []
    if tool.name == "uv":
        own = ["pip", "install", "--no-progress", "--python", sys.executable]
        more = ["--index", job.extra_index] if job.extra_index else []
    else:
        own = ["install", "--no-input", "--no-compile", "--progress-bar", "off"]
        own += ["--no-cache-dir"] if job.large else []
    return [*tool.command, *own, *common, *more, *job.requirements]


def _variables(job: Job, tool: Tool, plain: bool) -> dict[str, str]:
    """Those of the user, less what does not go with a folder as the target."""
    found = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    for name in ("PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_EDITABLE", "PIP_REPORT"):
        found.pop(name, None)
    found |= {"PIP_USER": "0", "PIP_REQUIRE_VIRTUALENV": "0", "PIP_NO_BINARY": ":none:"}
    found["TMPDIR"] = str(job.scratch)
    if not plain:
        return found
    for name in ("UV_CONSTRAINT", "UV_OVERRIDE", "UV_FIND_LINKS", "UV_EXCLUDE_NEWER"):
        found.pop(name, None)
    # An empty variable does not outrank pip's files, an empty file does.
    empty = job.scratch / "none"
    empty.mkdir(exist_ok=True)
    (empty / "constraints.txt").touch()
    found["PIP_CONSTRAINT"] = str(empty / "constraints.txt")
    found["PIP_FIND_LINKS"] = str(empty)
    return found


def _failure(tool: Tool, code: int, log: str) -> Failure:
    if code < 0:
        return Failure(f"{tool.name} was ended by signal {-code}")
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    told = [line for line in lines if re.match(r"(ERROR|error|Caused by|cause)\b", line)] or lines
    said = " ".join(told)[-400:] or f"exit code {code}"
    if _NO_NETWORK.search(log):
        return Failure(
            f"{tool.name} could not reach a package index; check the network and {tool.name}'s "
            "settings of index and proxy",
            network=True,
        )
    return Failure(f"{tool.name} said: {said}", full=_FULL in log, absent=bool(_ABSENT.search(log)))
