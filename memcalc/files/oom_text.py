"""Reads an out-of-memory message of PyTorch in a log, and tells why the request failed.

Source of the wordings: ``c10/cuda/CUDACachingAllocator.cpp``, up to PyTorch 2.0 and since 2.1.
"""

import re
from pathlib import Path

from memcalc.errors import UsageError
from memcalc.files import untrusted_values
from memcalc.records.oom_text import Gap, OomText
from memcalc.units import parse_bytes

_SIZE = r"([\d.]+ (?:bytes|[KMGT]iB))"
_NEW = re.compile(
    rf"Tried to allocate {_SIZE}\. GPU (\d+) has a total capac\w+ of {_SIZE} of which {_SIZE} is "
    r"free\."
)
_OLD = re.compile(
    rf"Tried to allocate {_SIZE} \(GPU (\d+); {_SIZE} total capacity; {_SIZE} already allocated; "
    rf"{_SIZE} free; {_SIZE} reserved in total by PyTorch\)"
)
_PROCESS = re.compile(rf"this process has {_SIZE} memory in use")
_ALLOWED = re.compile(rf"{_SIZE} allowed")
_ALLOCATED = re.compile(rf"Of the allocated memory {_SIZE} is allocated by PyTorch")
_CACHED = re.compile(rf"{_SIZE} is reserved by PyTorch but unallocated")
_FRAME = re.compile(r'File "([^"\n]+)", line (\d+), in ')
_OF_PACKAGES = ("site-packages", "dist-packages", "/lib/python3", "<frozen", "<string>")
_LARGEST = 64 << 20
LOGS = (".txt", ".log", ".out", ".err")
"""Endings of the files that programs' output is kept in."""


def is_oom_text(path: Path) -> bool:
    """Return True if a text file contains PyTorch's out-of-memory message."""
    if path.suffix.lower() not in ("", *LOGS) or not path.is_file():
        return False
    with open(path, "rb") as file:
        return b"Tried to allocate" in file.read(_LARGEST)


def read(path: Path) -> OomText:
    """Parse the last out-of-memory message in a log file.

    Raises:
        UsageError: it cannot be read, or no message in it is whole.
    """
    text = untrusted_values.content(path, _LARGEST).decode("utf-8", errors="replace")
    found = [*_NEW.finditer(text), *_OLD.finditer(text)]
    if not found:
        raise UsageError(
            f'{path} has no whole message of PyTorch: keep the line that begins "CUDA out of '
            'memory. Tried to allocate" to its end.'
        )
    last = max(found, key=lambda match: match.start())
    # One message ends where the next line begins.
    rest = text[last.start() :].partition("\n")[0]
    before = text[: last.start()]
    frames = _FRAME.findall(before[before.rfind("Traceback (most recent call last)") :])
    own = [one for one in frames if not any(part in one[0] for part in _OF_PACKAGES)]
    return _make_record(last, rest, own, len(found))


def _make_record(
    match: re.Match[str], rest: str, frames: list[tuple[str, str]], times: int
) -> OomText:
    asked, total = _parse_size(match[1]), _parse_size(match[3])
    if match.re is _NEW:
        free = _parse_size(match[4])
        allocated = _find_bytes(_ALLOCATED, rest) or 0
        cached = _find_bytes(_CACHED, rest) or 0
    else:
        allocated, free = _parse_size(match[4]), _parse_size(match[5])
        cached = max(_parse_size(match[6]) - allocated, 0)
    process, allowed = _find_bytes(_PROCESS, rest), _find_bytes(_ALLOWED, rest)
    held = process if process is not None else allocated + cached
    outside = max(total - free - held, 0)
    return OomText(
        asked=asked,
        gpu=int(match[2]),
        total=total,
        free=free,
        allocated=allocated,
        cached=cached,
        process=process,
        allowed=allowed,
        outside=outside,
        gap=_find_cause(asked, free, cached, outside, allowed),
        line=f"{Path(frames[-1][0]).name}:{frames[-1][1]}" if frames else None,
        script=frames[0][0] if frames else None,
        times=times,
    )


_CONTEXT = 1 << 30
"""Bytes that a context and libraries take at most, where a message does not say."""


def _find_cause(asked: int, free: int, cached: int, outside: int, allowed: int | None) -> Gap:
    """Return why the request failed: a limit, fragmentation, other processes, or its size."""
    if allowed is not None:
        return "limit"
    if cached + free >= asked:
        return "fragmentation"
    if outside > _CONTEXT and outside + cached + free >= asked:
        return "other processes"
    return "too large"


def _find_bytes(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    return _parse_size(found[1]) if found is not None else None


def _parse_size(text: str) -> int:
    return parse_bytes(text.replace("bytes", "B"))
