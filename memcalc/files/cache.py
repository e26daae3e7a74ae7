"""Answers kept on disk, keyed by everything they depend on; losing them costs only time."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from memcalc.errors import UsageError
from memcalc.files.artifact import SCHEMA, encode
from memcalc.records.plan import Plan
from memcalc.records.trace import Trace
from memcalc.version import __version__

_PACKAGES = ("torch", "transformers", "peft", "bitsandbytes", "torchao")


def folder() -> Path:
    """``$MEMCALC_CACHE``, or memcalc's folder in the user's cache."""
    chosen = os.environ.get("MEMCALC_CACHE")
    if chosen:
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "memcalc"


def key(plan: Plan, config: dict[str, Any], kind: str) -> str:
    """A name for the answer: plan, model config, versions of all code that answers."""
    question = {
        "kind": kind,
        "plan": encode(plan),
        "config": config,
        "memcalc": [__version__, SCHEMA, _own_code()],
        "packages": {name: _version(name) for name in _PACKAGES},
    }
    text = json.dumps(question, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def load(name: str) -> dict[str, Any] | None:
    """The answer kept under this name; ``None`` where there is none or it is damaged."""
    path = folder() / f"{name}.json"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        warnings.warn(f"ignoring the cached answer {path}: {error}", stacklevel=2)
        return None
    if not isinstance(data, dict):
        warnings.warn(f"ignoring the cached answer {path}: not an object", stacklevel=2)
        return None
    return data


def store(name: str, answer: dict[str, Any]) -> None:
    """Keep an answer; a cache that cannot be written is a warning, not an error."""
    from memcalc.files import artifact

    try:
        folder().mkdir(parents=True, exist_ok=True)
        artifact.write(folder() / f"{name}.json", json.dumps(answer))
    except (OSError, UsageError) as error:
        warnings.warn(f"the answer is not cached: {error}", stacklevel=2)


def load_trace(name: str) -> Trace | None:
    """The trace kept under this name; ``None`` where there is none or it is damaged."""
    from memcalc.files.trace_file import DamagedTraceError, read

    path = folder() / f"{name}.trace"
    try:
        return read(path)
    except FileNotFoundError:
        return None
    except (OSError, DamagedTraceError) as error:
        warnings.warn(f"ignoring the cached trace {path}: {error}", stacklevel=2)
        return None


def store_trace(name: str, trace: Trace) -> None:
    """Keep a trace; a cache that cannot be written is a warning, not an error."""
    from memcalc.files.trace_file import write

    try:
        folder().mkdir(parents=True, exist_ok=True)
        write(folder() / f"{name}.trace", trace)
    except (OSError, UsageError) as error:
        warnings.warn(f"the trace is not cached: {error}", stacklevel=2)


@functools.cache
def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache
def _own_code() -> str:
    """Sizes and times of memcalc's own files, so that a changed checkout does not answer stale."""
    root = Path(__file__).parent
    digest = hashlib.sha256()
    for folder_name, folders, files in os.walk(root):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(files):
            if name.endswith(".py"):
                status = os.stat(os.path.join(folder_name, name))
                digest.update(f"{name}{status.st_size}{status.st_mtime_ns}".encode())
    return digest.hexdigest()[:16]
