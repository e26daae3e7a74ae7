"""Commands that start a serving engine: vLLM's own, run until the engine is up."""

import shlex
from collections.abc import Sequence
from pathlib import Path

import msgspec

from memcalc.catalog import gpus
from memcalc.catalog.gpus import Gpu
from memcalc.errors import UsageError
from memcalc.estimation.serving.run import require_python, start_vllm
from memcalc.estimation.serving.started import prediction_of
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.script.command import PYTHON, assigned
from memcalc.script.records import Answer
from memcalc.script.streams import stderr_or_nothing

COMMAND = "vllm"
_MODULE = "vllm.entrypoints.cli.main"
_OWN = "vllm.entrypoints."
"""Modules of vLLM that start an engine, after ``python -m``."""
_CLIENTS = ("chat", "complete", "collect-env", "download-kernels")
"""Subcommands that start none."""
_HIDDEN = ("--port", "0", "--host", "127.0.0.1")
"""No port of the user's is taken for a server that nobody asks."""


class Server(msgspec.Struct, frozen=True, kw_only=True):
    """A command that starts vLLM."""

    module: str
    arguments: tuple[str, ...]
    environment: tuple[tuple[str, str], ...] = ()
    """Variables that stand before it."""


def server_in(words: Sequence[str], environment: Sequence[tuple[str, str]] = ()) -> Server | None:
    """Return the server that these words of a command line start; ``None``: they start none.

    Raises:
        UsageError: it is a command of vLLM's that starts no engine.
    """
    first, rest = Path(words[0]).name if words else "", list(words[1:])
    if first == COMMAND:
        module = _MODULE
    elif PYTHON.fullmatch(first) and rest[:1] == ["-m"] and rest[1:2] == [COMMAND]:
        module, rest = _MODULE, rest[2:]
    elif PYTHON.fullmatch(first) and rest[:1] == ["-m"] and "".join(rest[1:2]).startswith(_OWN):
        module, rest = rest[1], rest[2:]
    else:
        return None
    given = tuple(environment)
    if module != _MODULE:
        hidden = _HIDDEN if module.endswith("api_server") else ()
        return Server(module=module, arguments=(*rest, *hidden), environment=given)
    if not rest or rest[0] in _CLIENTS or rest[0].startswith("-"):
        raise UsageError(
            f"{' '.join([COMMAND, *rest[:1]])} starts no engine: type memcalc simulate --gpu h100 "
            "-- vllm serve MODEL."
        )
    hidden = _HIDDEN if rest[0] == "serve" else ()
    return Server(module=module, arguments=(*rest, *hidden), environment=given)


def server_of(plan: Plan) -> Server | None:
    """Return the server that a plan's command starts; ``None``: it starts none.

    Raises:
        UsageError: it cannot be understood, or is a command of vLLM's that starts no engine.
    """
    try:
        given, words = assigned(shlex.split(plan.command or ""))
    except ValueError:
        return None  # Whoever reads it as a program says what is wrong.
    return server_in(words, tuple(given.items()))


def simulate_server(
    server: Server,
    plan: Plan,
    folder: Path,
    *,
    python: str | None,
    release: str | None = None,
    quiet: bool = False,
) -> Prediction:
    """Start a server on the plan's GPU until its engine is up, and return its own figures.

    Raises:
        UsageError: no GPU is named, there is no vLLM, or vLLM refuses to start.
        EstimateError: it ended before it started an engine.
    """
    if plan.gpu is None:
        raise UsageError(
            "vLLM takes a share of a GPU: name the GPU, as in memcalc simulate --gpu h100 -- "
            f"{plan.command}."
        )
    gpu = gpus.find(plan.gpu)
    found = start_vllm(
        server.arguments,
        gpu,
        python=require_python(python, release),
        count=plan.devices,
        module=server.module,
        given=dict(server.environment),
        where=folder,
        out=stderr_or_nothing(quiet=quiet),
    )
    return prediction_of(plan, gpu, found)


def served_by(answer: Answer, plan: Plan, gpu: Gpu | None) -> Prediction | None:
    """Return the figures of an engine that a script started on a named GPU.

    Returns:
        ``None``: it started none, or trains beside it.

    Raises:
        UsageError: the engine refused to start, which ended the script.
    """
    found, ending = answer.started, answer.ending
    if found is None or gpu is None or ending.trains:
        return None
    if found.engine is None and not (found.refused is not None and ending.code):
        return None
    return prediction_of(plan, gpu, found)
