"""Answers kept on disk, keyed by everything they depend on; losing them costs only time.

Any number of processes share the folder: a file appears whole or not at all, and may go at any
time. What has not been asked for the longest goes when all together exceed ``$MEMCALC_CACHE_SIZE``.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import re
import time
import warnings
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from memcalc.errors import UsageError
from memcalc.files.artifact import SCHEMA, encode, put
from memcalc.files.shipped import configs
from memcalc.files.trace_file import pack, unpack
from memcalc.files.untrusted_values import reason
from memcalc.records.plan import Plan
from memcalc.records.trace import Trace
from memcalc.units import GIB, parse_bytes
from memcalc.version import PACKAGES, __version__, find_version

DEFAULT_SIZE = GIB
"""Room for some hundreds of traces of large models, or for all answers anybody asks for."""
_OURS = re.compile(r"(?P<name>[0-9a-f]{32}(-\d+)?)\.(json|trace)|\.memcalc-[0-9a-f]{12}")
"""What ``store`` writes, and what a process leaves that dies while it does; nothing else is ours
to delete in a folder that somebody has named."""
_PUT_BY = 3600.0
"""Seconds after which a half-written file is abandoned."""
_WHERE_USED = (
    *("deepspeed", "flash-attn", "triton", "nvidia-cudnn-cu12", "nvidia-cudnn-cu13"),
    *("numpy", "schedulefree", "optimum-quanto", "hqq"),
)
"""Packages whose code the answers to some questions depend on, beside ``PACKAGES``."""
_SEAL = hashlib.sha256().digest_size
T = TypeVar("T")


def folder() -> Path:
    """Return the cache folder: ``$MEMCALC_CACHE``, or memcalc's in the user's cache."""
    chosen = os.environ.get("MEMCALC_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if base.startswith("~"):
        raise FileNotFoundError(errno.ENOENT, "there is no home folder: set MEMCALC_CACHE")
    return Path(base) / "memcalc"


def size_limit() -> int:
    """Return the most bytes that the cache may hold: ``$MEMCALC_CACHE_SIZE`` or the default.

    Raises:
        UsageError: that is no size.
    """
    chosen = os.environ.get("MEMCALC_CACHE_SIZE")
    if not chosen:
        return DEFAULT_SIZE
    try:
        return parse_bytes(chosen)
    except UsageError as error:
        raise UsageError(f"MEMCALC_CACHE_SIZE is not understood: {error}") from None


def key(plan: Plan, config: dict[str, Any], kind: str) -> str:
    """Return the cache key of an answer: a hash of plan, config and all versions."""
    question = {
        "kind": kind,
        "plan": encode(plan),
        "config": config,
        "memcalc": [__version__, SCHEMA, _hash_own_code()],
        "packages": {name: find_version(name) for name in (*PACKAGES, *_WHERE_USED)},
    }
    text = json.dumps(question, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(name: str, kind: type[T]) -> T | None:
    """Load the cached record under a key; None if it is missing or damaged.

    Raises:
        UsageError: ``$MEMCALC_CACHE_SIZE`` is no size, which is told before an answer is computed.
    """
    size_limit()
    path = Path(name)
    try:
        path = _cache_file(name, kind)
        if path.exists() and not path.is_file():
            raise ValueError("it is not a file")
        data = path.read_bytes()
        found: Any = unpack(data) if kind is Trace else _unseal(data, kind)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        warnings.warn(f"ignoring the cached answer {path}: {reason(error)}", stacklevel=2)
        return None
    # An entry's time of change says when it was last of use.
    with contextlib.suppress(OSError):
        os.utime(path)
    return found  # type: ignore[no-any-return]


def store(name: str, record: msgspec.Struct) -> None:
    """Cache a record under a key, then evict old ones; a failure is only a warning."""
    limit, where = size_limit(), ""
    try:
        where = f"{folder()} cannot be written: "
        data = pack(record) if isinstance(record, Trace) else _seal(msgspec.json.encode(record))
        if len(data) <= limit:
            folder().mkdir(parents=True, exist_ok=True)
            put(_cache_file(name, type(record)), data)
            _evict(limit)
    except (OSError, ValueError) as error:
        warnings.warn(f"the answer is not cached: {where}{reason(error)}", stacklevel=2)


def _cache_file(name: str, kind: type) -> Path:
    return folder() / f"{name}.{'trace' if kind is Trace else 'json'}"


def _seal(data: bytes) -> bytes:
    """Return data with its SHA-256 digest appended."""
    return data + hashlib.sha256(data).digest()


def _unseal(data: bytes, kind: type[T]) -> T:
    body = data[:-_SEAL]
    if _seal(body) != data:
        raise ValueError("it is damaged")
    return msgspec.json.decode(body, type=kind)


def _evict(limit: int) -> None:
    """Delete the least recently used answers until the cache is within its limit."""
    entries: dict[str, list[os.DirEntry[str]]] = {}
    used: dict[str, float] = {}
    sizes: dict[str, int] = {}
    with os.scandir(folder()) as listing:
        for file in listing:
            match = _OURS.fullmatch(file.name)
            if match is None:
                continue
            # Another process may have deleted it since it was listed.
            with contextlib.suppress(FileNotFoundError):
                status = file.stat(follow_symlinks=False)
                if match["name"] is None and time.time() - status.st_mtime < _PUT_BY:
                    continue
                name = match["name"] or file.name
                entries.setdefault(name, []).append(file)
                used[name] = max(used.get(name, 0.0), status.st_mtime) if match["name"] else 0.0
                sizes[name] = sizes.get(name, 0) + status.st_size
    total = sum(sizes.values())
    for name in sorted(entries, key=lambda name: used[name]):
        if total <= limit and used[name]:
            return
        for file in entries[name]:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file.path)
        total -= sizes[name]


@functools.cache
def _hash_own_code() -> str:
    """Return a hash of the sizes and times of memcalc's own files."""
    digest = hashlib.sha256()
    for root in (Path(__file__).parent.parent, configs()):
        for folder_name, folders, files in os.walk(root):
            folders[:] = sorted(name for name in folders if name != "__pycache__")
            for name in sorted(files):
                if name.endswith((".py", ".toml")):
                    status = os.stat(os.path.join(folder_name, name))
                    digest.update(f"{name}{status.st_size}{status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
