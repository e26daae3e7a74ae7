"""A checked question: the plan with its optimizer, GPU and PyTorch."""

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
from memcalc.version import installed

_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})(?![0-9])")
ASSUMED = Target(capability=(8, 0), multiprocessors=108, torch=(2, 14))
"""NVIDIA A100: what a run without a named GPU stands for."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about a plan that does not change with batch and sequence."""

    plan: Plan
    choice: Choice
    gpu: Gpu | None
    target: Target
    notes: tuple[str, ...]
    """What was assumed of the target."""

    @property
    def settings(self) -> AllocatorSettings:
        """Of the allocator, as the plan's PyTorch reads them."""
        return parse_alloc_conf(self.plan.alloc_conf, torch=self.target.torch)


def canonical(plan: Plan) -> Plan:
    """The plan with its names as the catalog spells them: other spellings ask the same.

    Raises:
        UsageError: it names something unknown.
    """
    return replace(
        plan,
        model=models.canonical(plan.model),
        gpu=gpus.find(plan.gpu).name if plan.gpu is not None else None,
        assumed=(),
    )


def asked(plan: Plan) -> Asked:
    """Look up what a plan names.

    Raises:
        UsageError: it names something unknown.
    """
    gpu = gpus.find(plan.gpu) if plan.gpu is not None else None
    target, notes = resolve(plan, gpu)
    notes = (*models.notes(plan.model), *notes)
    return Asked(plan=plan, choice=registry.of(plan), gpu=gpu, target=target, notes=notes)


def code_in(plan: Plan) -> str | None:
    """The user's own code that an estimate would import and run.

    A person who types it wants that. A file is data: what it names is never run for it.

    Returns:
        The command, the model or the optimizer; ``None``: all of it is known to memcalc.
    """
    if plan.command or ":" in plan.model:
        return plan.name
    try:
        known = not registry.of(plan).row.foreign
    except UsageError:
        # Unknown to all: whoever asks about it is told so, and nothing is imported.
        known = True
    return None if known else plan.optim


def shell_notes(plan: Plan) -> tuple[str, ...]:
    """Return sentences on this shell's variables that could change a figure and are left out."""
    if plan.command:
        return ()
    names = variables.left_out(os.environ)
    told = next((os.environ[name] for name in VARIABLES if name in names), "")
    if plan.alloc_conf:
        names, told = tuple(name for name in names if name not in VARIABLES), ""
    if not names:
        return ()
    listed, verb = ", ".join(names), "is" if len(names) == 1 else "are"
    instead = f"; --alloc-conf {told} is" if told else ""
    return (f"{listed} of this shell {verb} no part of an estimate{instead}",)


def resolve(plan: Plan, gpu: Gpu | None) -> tuple[Target, tuple[str, ...]]:
    """Settle the target; returns it with what was assumed.

    Raises:
        UsageError: the PyTorch version is not of the form 2.13.
    """
    target = replace(ASSUMED, torch=version_of(plan.torch))
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


def version_of(text: str | None) -> tuple[int, int]:
    """The version of PyTorch that will run, (major, minor); ``None``: the installed one.

    Raises:
        UsageError: it is no version, or one whose allocator nobody has read.
    """
    found = _VERSION.match(text or installed("torch") or "")
    if found is None:
        raise UsageError(f"--torch {text!r} is not a version: write it like --torch 2.13.")
    version = int(found[1]), int(found[2])
    if version < (2, 0):
        raise UsageError(f"--torch {text}: memory of PyTorch before 2.0 is not known.")
    return version
