"""Commands that start a serving engine: vLLM's own, run until the engine is up."""

import itertools
import math
import re
import shlex
from pathlib import Path

from memcalc.catalog import gpus
from memcalc.catalog.gpus import Gpu
from memcalc.errors import UsageError
from memcalc.estimation.serving.run import require_python, start_vllm
from memcalc.estimation.serving.started import convert_figures
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.script.command import PYTHON, SERVER, Program, split_assignments
from memcalc.script.records import Answer
from memcalc.script.streams import stderr_or_nothing

_MODULE = "vllm.entrypoints.cli.main"
_ENTRY_POINTS = "vllm.entrypoints."
"""Modules of vLLM that start an engine, after ``python -m``."""
_SGLANG = "sglang"
_MODEL_OF_SGLANG = re.compile(r"--model(?:-path)?[= ](\S+)")
_WITHOUT_ENGINE = {
    *("chat", "complete", "collect-env", "download-kernels", "launch", "preload"),
    *("bench serve", "bench sweep"),
}
"""Subcommands that start none, or several one after the other."""
_HIDDEN = ("--port", "0", "--host", "127.0.0.1")
"""Keeps the port of a server without clients apart from the user's own."""


def find_server(plan: Plan) -> Program | None:
    """Return the server that a plan's command starts, or None if it starts none.

    Raises:
        UsageError: it is a command of vLLM's that starts no engine, or SGLang's.
    """
    try:
        given, words = split_assignments(shlex.split(plan.command or ""))
    except ValueError:
        return None  # Whoever reads it as a program says what is wrong.
    first, *rest = words or [""]
    first, module = Path(first).name, _MODULE
    options = list(itertools.takewhile(lambda word: word != "-m" and word.startswith("-"), rest))
    if PYTHON.fullmatch(first) and rest[len(options) :][:1] == ["-m"]:
        first, *rest = rest[len(options) + 1 :] or [""]
        if first.startswith(_ENTRY_POINTS):
            module, first = first, SERVER
    if first.partition(".")[0] == _SGLANG:
        found = _MODEL_OF_SGLANG.search(shlex.join(rest))
        raise UsageError(
            f"{_SGLANG}'s server is not simulated, but its rules are known: type memcalc estimate "
            f"{found[1] if found else 'MODEL'} --engine {_SGLANG} --gpu {plan.gpu or 'h100'}."
        )
    if first != SERVER:
        return None
    if module != _MODULE:
        serves = module.endswith("api_server")
    elif not rest or rest[0].startswith("-") or {rest[0], " ".join(rest[:2])} & _WITHOUT_ENGINE:
        raise UsageError(
            f"{' '.join([SERVER, *rest[:2]])} starts no engine: type memcalc simulate --gpu h100 "
            "-- vllm serve MODEL."
        )
    else:
        serves = rest[0] == "serve"
    arguments = (*rest, *(_HIDDEN if serves else ()))
    return Program(module=module, arguments=arguments, environment=tuple(given.items()))


def simulate_server(
    server: Program, plan: Plan, folder: Path, *, quiet: bool = False, timeout: float = math.inf
) -> Prediction:
    """Start a server on the plan's GPU until its engine is up, and return its own figures.

    Raises:
        UsageError: no GPU is named, there is no vLLM, or vLLM refuses to start.
        EstimateError: it ended, or its time was up, before it started an engine.
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
        python=require_python(plan.python),
        count=plan.devices,
        module=server.module,
        given=dict(server.environment),
        where=folder,
        out=stderr_or_nothing(quiet=quiet),
        timeout=timeout,
    )
    return convert_figures(plan, gpu, found)


def predict_served(answer: Answer, plan: Plan, gpu: Gpu | None) -> Prediction | None:
    """Return the figures of an engine that a script started on a named GPU.

    Returns:
        None if it started none, trains beside it, or failed for another reason.

    Raises:
        UsageError: the engine refused to start, which ended the script.
    """
    found, ending = answer.started, answer.ending
    if found is None or gpu is None or ending.trains:
        return None
    refused, failed = found.refused is not None, bool(ending.code)
    if refused != failed or (found.engine is None and not refused):
        return None
    return convert_figures(plan, gpu, found)
