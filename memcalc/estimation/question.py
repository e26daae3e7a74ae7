"""Looks up what a plan names: its optimizer, GPU and PyTorch, and the user's own code."""

import os
import re

import msgspec
from msgspec.structs import replace

from memcalc import registry
from memcalc.catalog import gpus, models
from memcalc.catalog.gpus import Gpu, Target
from memcalc.children import variables
from memcalc.engine.alloc_conf import VARIABLES, AllocatorSettings, parse_alloc_conf
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.trace import EMULATED
from memcalc.registry import Choice
from memcalc.version import find_version

_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})(?![0-9])")
ASSUMED = Target(capability=(8, 0), multiprocessors=108, torch=(2, 14))
"""The GPU of a run that names none: an NVIDIA A100."""


class ResolvedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan with its optimizer, GPU and PyTorch looked up."""

    plan: Plan
    choice: Choice
    gpu: Gpu | None
    target: Target
    memory: int | None = None
    """Bytes of the GPU, in place of its own."""
    notes: tuple[str, ...]
    """Assumptions about the model and the target, as sentences."""

    @property
    def settings(self) -> AllocatorSettings:
        """The allocator's settings, as the plan's PyTorch reads them."""
        return parse_alloc_conf(self.plan.alloc_conf, torch=self.target.torch)


def canonical(plan: Plan) -> Plan:
    """Return the plan with the catalog's spellings of its model and GPU.

    Raises:
        UsageError: it names something unknown.
    """
    return replace(
        plan,
        model=models.canonical(plan.model),
        gpu=gpus.find(plan.gpu).name if plan.gpu is not None else None,
        assumed=(),
    )


def look_up(plan: Plan, memory: int | None = None) -> ResolvedPlan:
    """Look up the optimizer, GPU and PyTorch release that a plan names.

    ``memory``: bytes of the GPU, in place of its own.

    Raises:
        UsageError: it names something unknown.
    """
    gpu = gpus.find(plan.gpu) if plan.gpu is not None else None
    target, notes = resolve(plan, gpu)
    notes = (*models.notes(plan.model), *notes)
    return ResolvedPlan(
        plan=plan, choice=registry.of(plan), gpu=gpu, target=target, memory=memory, notes=notes
    )


def find_user_code(plan: Plan) -> str | None:
    """Return the name of the user's own code that an estimate would import and run.

    A person who types the name wants that. A file is data: code that it names is never run.

    Returns:
        The command, model or optimizer; None if memcalc knows all that the plan names.
    """
    if plan.command or ":" in plan.model:
        return plan.name
    try:
        known = not registry.of(plan).row.foreign
    except UsageError:
        # An unknown name is an error elsewhere, and nothing is imported.
        known = True
    return None if known else plan.optim


def shell_notes(plan: Plan) -> tuple[str, ...]:
    """Return notes on environment variables that affect PyTorch but not the estimate."""
    if plan.command:
        return ()
    names = variables.left_out(os.environ)
    conf = next((os.environ[name] for name in VARIABLES if name in names), "")
    if plan.alloc_conf:
        names, conf = tuple(name for name in names if name not in VARIABLES), ""
    if not names:
        return ()
    listed, verb = ", ".join(names), "is" if len(names) == 1 else "are"
    instead = f"; --alloc-conf {conf} is" if conf else ""
    return (f"{listed} of this shell {verb} no part of an estimate{instead}",)


def resolve(plan: Plan, gpu: Gpu | None) -> tuple[Target, tuple[str, ...]]:
    """Return the target (GPU properties and PyTorch release) of a plan, and notes on it.

    Raises:
        UsageError: the PyTorch version is not of the form 2.13.
    """
    target = replace(ASSUMED, torch=torch_version(plan.torch))
    notes: tuple[str, ...] = ()
    if plan.target == "cpu":
        return target, notes
    if gpu is None:
        return target, ("an NVIDIA A100 (name yours with --gpu)",)
    target = replace(target, capability=gpu.capability, multiprocessors=gpu.multiprocessors)
    if "bf16" in plan.precision and not target.architecture.bf16:
        notes = (*notes, f"{EMULATED}; PyTorch emulates it, and attention keeps whole matrices")
    if plan.precision == "tf32" and not target.architecture.tf32:
        notes = (*notes, "this GPU has no TF32: its products run in fp32")
    return target, notes


def torch_version(text: str | None) -> tuple[int, int]:
    """Return PyTorch's version as (major, minor); without a text, of the installed PyTorch.

    Raises:
        UsageError: the text is no version, or it is older than 2.0.
    """
    found = _VERSION.match(text or find_version("torch") or "")
    if found is None:
        raise UsageError(f"--torch {text!r} is not a version: write it like --torch 2.13.")
    version = int(found[1]), int(found[2])
    if version < (2, 0):
        raise UsageError(f"--torch {text}: memory of PyTorch before 2.0 is not known.")
    return version
