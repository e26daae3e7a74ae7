"""Asks a child process to run a program on a simulated GPU."""

from __future__ import annotations

import base64
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.children import inductor
from memcalc.children.ask import Parent
from memcalc.errors import EstimateError
from memcalc.estimation.estimate import Traced, keep
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import DamagedTraceError, unpack
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict, Prediction
from memcalc.script.command import understand
from memcalc.script.records import Ending

STEPS = 3
"""Optimizer steps after which a program is stopped, unless others are asked for."""
_ENVIRONMENT = {
    # The same answer with and without a GPU in the machine.
    "CUDA_VISIBLE_DEVICES": "",
}


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """How a program ended, and what it took of the GPU."""

    ending: Ending
    traced: Traced | None
    """``None``: it never used the GPU."""


def simulate(
    plan: Plan, parent: Parent | None = None, folder: Path | None = None, *, weights: bool = False
) -> Simulated:
    """Run the program of a plan; what it prints goes to standard error.

    Args:
        plan: its command, and the GPU.
        parent: forks the child; ``None``: one of its own.
        folder: where to run it; ``None``: here.
        weights: are fetched and read, and hold their numbers as long as they are on the host.

    Raises:
        UsageError: the command cannot be understood.
        EstimateError: the child died.
    """
    folder = Path.cwd() if folder is None else folder
    variables = dict(understand(plan.command or "", folder).environment)
    if plan.gpu is not None:
        gpus.find(plan.gpu)
    if parent is None or variables:
        # What is imported reads them too.
        with simulating_parent(variables) as own:
            return _asked(plan, own, folder, weights=weights)
    return _asked(plan, parent, folder, weights=weights)


def _asked(plan: Plan, parent: Parent, folder: Path, *, weights: bool) -> Simulated:
    child = parent.child("memcalc.script.job", "simulated script", aloud=True)
    try:
        answer = child.ask({"plan": encode(plan), "folder": str(folder), "weights": weights})
    finally:
        child.end()
    return _understood(answer)


def simulating_parent(variables: Mapping[str, str] | None = None) -> Parent:
    """A parent for several programs; its process starts when the first is run.

    Args:
        variables: of its environment, beside those of this process.
    """
    environment = {**os.environ, **(variables or {}), **_ENVIRONMENT, **inductor.elsewhere()}
    return Parent(EstimateError, environment)


def _understood(answer: dict[str, Any]) -> Simulated:
    ending: Ending = decode(Ending, answer["ending"])
    if "prediction" not in answer:
        return Simulated(ending=ending, traced=None)
    try:
        trace = unpack(base64.b64decode(answer["trace"]))
    except DamagedTraceError as error:
        raise EstimateError(f"What the simulated run said cannot be read: {error}.") from None
    prediction = _as_it_ended(decode(Prediction, answer["prediction"]), ending)
    traced = Traced(prediction=prediction, trace=trace)
    keep(traced)
    return Simulated(ending=ending, traced=traced)


def _as_it_ended(prediction: Prediction, ending: Ending) -> Prediction:
    """A program that failed might have taken more: that it fits is not known then."""
    if not ending.code:
        return prediction
    until_then = f"the script ended with exit code {ending.code}, and the figures are until then"
    told = replace(prediction, assumptions=(until_then, *prediction.assumptions))
    if told.fit is None or told.fit.verdict is FitVerdict.DOES_NOT_FIT:
        return told
    return replace(told, fit=None, unknown={**told.unknown, "fit": until_then})


def plan_of(command: Sequence[str], **settings: Any) -> Plan:
    """A plan that runs a command; settings that are ``None`` are left out.

    Raises:
        UsageError: a setting makes no sense.
    """
    return make({"steps": STEPS, **settings, "command": shlex.join(command)})
