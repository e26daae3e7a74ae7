"""Looks up what a plan names, once, and checks it before anything heavy is imported."""

import functools
import os
import re
from collections.abc import Iterator

import msgspec
from msgspec.structs import replace

from memcalc import registry
from memcalc.catalog import gpus, inventory, models, positions, quantized
from memcalc.catalog.gpus import Gpu, Target
from memcalc.catalog.models import ModelSource
from memcalc.catalog.positions import Lengths
from memcalc.children import variables
from memcalc.engine.alloc_conf import VARIABLES, AllocatorSettings, parse_alloc_conf
from memcalc.errors import SettingError, UsageError, blame_setting
from memcalc.files import compiler
from memcalc.records.names import FLASH_ATTN
from memcalc.records.plan import Plan
from memcalc.records.trace import EMULATED
from memcalc.registry import Choice
from memcalc.version import find_version
from memcalc.workload import cache_layers, float8, layouts, liger, loops, parallel, tasks
from memcalc.workload.layouts import Layout
from memcalc.workload.loops import Loop
from memcalc.workload.spread import Spread
from memcalc.workload.tasks import Head

_FLASH_ATTN_SINCE = (8, 0)
"""The lowest compute capability that flash-attn supports (``mha_fwd``, flash_api.cpp, 2.8.3)."""
_VERSION = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})(?![0-9])")
ASSUMED = Target(capability=(8, 0), multiprocessors=108, torch=(2, 14))
"""The GPU of a run that names none: an NVIDIA A100."""


class ResolvedPlan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """A plan with all that it names looked up; its model is looked up when first asked for.

    A command has no model.
    """

    plan: Plan
    choice: Choice
    loop: Loop
    layout: Layout
    spread: Spread
    gpu: Gpu | None
    target: Target
    settings: AllocatorSettings
    """The allocator's settings, as the plan's PyTorch reads them."""
    memory: int | None = None
    """Bytes of the GPU, in place of its own."""

    @functools.cached_property
    def source(self) -> ModelSource:
        """The model and its config."""
        with blame_setting("model"):
            return models.find(self.plan.model)

    @functools.cached_property
    def head(self) -> Head:
        """The model's class for the plan's task."""
        with blame_setting("task"):
            return tasks.choose(self.source, self.plan.task)

    @functools.cached_property
    def lengths(self) -> Lengths:
        """The numbers of tokens per sample that the model takes."""
        return positions.lengths(self.source.config or {})

    @property
    def capability(self) -> tuple[int, int] | None:
        """The compute capability of the plan's GPU, or None on a CPU."""
        return None if self.plan.target == "cpu" else self.target.capability

    @property
    def assumptions(self) -> tuple[str, ...]:
        """The assumptions about the model and the target, as sentences."""
        return (*(() if self.plan.command else self.source.notes), *_note_target(self))

    def notes_at(self, seq: int | None) -> tuple[str, ...]:
        """Return the notes on config and checkpoint for samples of ``seq`` tokens."""
        config, revision = self.source.config, self.source.revision
        commit = (f"the config is revision {revision} of the hub",) if revision else ()
        return (
            *self.plan.assumed,
            *commit,
            *positions.notes(config, seq),
            *quantized.notes(config),
        )

    @property
    def uncounted(self) -> tuple[str, ...]:
        """The memory that is not counted because of the model's checkpoint."""
        return quantized.uncounted_memory(self.source.config)


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
    """Look up what a plan names.

    ``memory``: bytes of the GPU, in place of its own.

    Raises:
        SettingError: it names something unknown.
    """
    with blame_setting("torch"):
        target = replace(ASSUMED, torch=torch_version(plan.torch))
    with blame_setting("alloc_conf"):
        settings = parse_alloc_conf(plan.alloc_conf, torch=target.torch)
    with blame_setting("task"):
        if plan.task != "auto":
            tasks.find(plan.task)
    with blame_setting("loop"):
        loop = loops.of(plan)
    with blame_setting("parallel"):
        spread, layout = layouts.spread(plan), layouts.of(plan)
    with blame_setting("optim"):
        choice = registry.of(plan)
    with blame_setting("gpu"):
        gpu = gpus.find(plan.gpu) if plan.gpu is not None else None
    if gpu is not None:
        target = replace(target, capability=gpu.capability, multiprocessors=gpu.multiprocessors)
    return ResolvedPlan(
        plan=plan,
        choice=choice,
        loop=loop,
        layout=layout,
        spread=spread,
        gpu=gpu,
        target=target,
        settings=settings,
        memory=memory,
    )


def check(plan: Plan) -> ResolvedPlan:
    """Validate a plan and look up its model, task, optimizer and GPU.

    Raises:
        SettingError: an unknown model, task, optimizer or GPU, or a setting that the model or
            another setting does not allow.
    """
    found = check_names(plan)
    if plan.command is not None:
        why = f"A command runs as it is: type memcalc simulate -- {plan.command}"
        raise SettingError("command", why)
    source, head = found.source, found.head
    quantized.check(plan, source, found.spread.layout, found.spread.world, found.capability)
    if plan.liger:
        liger.check(source)
    if plan.compile and compiler.system_compiler() is None:
        why = "Triton compiles with a C compiler, and there is none: install gcc, or set CC."
        raise SettingError("compile", why)
    if source.factory is not None and plan.attention in ("eager", FLASH_ATTN):
        why = f"{source.name} chooses its attention itself: leave --attention out."
        raise SettingError("attention", why)
    refusal = found.lengths.refusal(source.name, plan.seq)
    if refusal is not None:
        raise SettingError("seq", refusal)
    inventory.check(plan, source, head.name)
    return found


def check_names(plan: Plan) -> ResolvedPlan:
    """Validate a plan's names except the model's, and look them up.

    Raises:
        SettingError: something is unknown, or has no meaning.
    """
    found = look_up(plan)
    gpu, flash = found.gpu, plan.attention == FLASH_ATTN
    if flash and plan.precision in ("fp32", "tf32"):
        why = "flash-attn computes in 16 bits: add --precision amp-bf16, or bf16."
        raise SettingError("attention", why)
    if flash and gpu is not None and gpu.capability < _FLASH_ATTN_SINCE:
        why = f"flash-attn needs Ampere or newer, and {gpu.name} is older: leave --attention out."
        raise SettingError("attention", why)
    with blame_setting("optim"):
        registry.check_precision(found.choice, plan)
    parallel.check(plan, found.spread, found.layout, found.choice)
    with blame_setting("cache"):
        cache_layers.check(plan.cache)
    if plan.float8 is not None:
        float8.check(plan, gpu, found.layout)
    return found


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


def _note_target(question: ResolvedPlan) -> Iterator[str]:
    """Yield notes on the GPU that is assumed, and on types that it does not compute in."""
    precision, architecture = question.plan.precision, question.target.architecture
    if question.plan.target == "cpu":
        return
    if question.gpu is None:
        yield "an NVIDIA A100 (name yours with --gpu)"
    if "bf16" in precision and not architecture.bf16:
        yield f"{EMULATED}; PyTorch emulates it, and attention keeps whole matrices"
    if precision == "tf32" and not architecture.tf32:
        yield "this GPU has no TF32: its products run in fp32"


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
