"""Stores answers and traces in the cache, under keys of everything that they depend on."""

import contextlib
import hashlib
import shlex
from pathlib import Path

import msgspec
from msgspec.structs import replace

from memcalc.files import cache, offline
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Trace

_LARGEST_FILE = 1 << 22


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction and the trace that it was made from."""

    prediction: Prediction
    trace: Trace


def store(name: str, answer: Prediction | Traced) -> None:
    """Cache a prediction or a trace, unless it lacks what only a network gives."""
    prediction = answer.prediction if isinstance(answer, Traced) else answer
    if any(offline.MISSING in sentence for sentence in prediction.uncounted):
        return  # The answer would differ with a network.
    _store_answer(name, answer)


def _store_answer(name: str, answer: Prediction | Traced) -> None:
    if isinstance(answer, Traced):
        cache.store(name, answer.trace)
        answer = answer.prediction
    cache.store(name, answer)


def load(name: str | None, plan: Plan) -> Prediction | None:
    """Return the cached prediction under a name, with this plan in it, or None."""
    found = cache.load(name, Prediction) if name is not None else None
    return replace(found, plan=plan) if found is not None else None


def load_trace(name: str | None, plan: Plan) -> Traced | None:
    """Return the cached prediction with its events, or None if one of them is missing."""
    known = load(name, plan)
    events = cache.load(name, Trace) if name is not None and known is not None else None
    return None if known is None or events is None else Traced(prediction=known, trace=events)


def keep(traced: Traced) -> None:
    """Cache a command's trace, and a mark that the command ran in this folder."""
    plan = traced.prediction.plan
    _store_answer(simulated_key(plan), traced)
    if plan.command:
        cache.store(_command_key(plan), traced.prediction)


def may_run_again(plan: Plan) -> bool:
    """Return True if the command ran in this folder before, and its files have not changed."""
    return cache.load(_command_key(plan), Prediction) is not None


def simulated_key(plan: Plan) -> str:
    """Return the cache key of a command's trace."""
    return cache.key(plan, {}, "simulated")


def _command_key(plan: Plan) -> str:
    """Return the cache key of a command: its folder and the contents of the files it names."""
    words = shlex.split(plan.command or "")
    files = {word: Path(word).read_bytes() for word in words if _is_small_file(word)}
    code = {word: hashlib.sha256(content).hexdigest() for word, content in files.items()}
    return cache.key(plan, {"folder": str(Path().resolve()), "code": code}, "ran")


def _is_small_file(word: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(word).is_file() and Path(word).stat().st_size < _LARGEST_FILE
    return False
