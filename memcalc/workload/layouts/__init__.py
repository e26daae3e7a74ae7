"""Spreads a run over GPUs: a file per layout, written as a user of its library would.

A layout moves a model from the meta device to this rank's device, makes the optimizer of the placed
model, and states how the loop differs. Real and simulated runs use these files; a process group of
the right size exists already.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import pkgutil
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from memcalc.errors import UsageError, unknown
from memcalc.records.names import AUTOCAST_DTYPES, DTYPES, PREFETCHES, STRATEGIES, WRAPS
from memcalc.records.plan import Plan
from memcalc.workload.spread import Spread

if TYPE_CHECKING:
    import torch

SINGLE = "single"
DEFAULT = "ddp"
"""Of several GPUs without a layout."""
_DIMENSIONS = {
    "pp": ("pp",),
    "ddp": ("dp_replicate",),
    "hsdp": ("dp_replicate", "dp_shard"),
    "fsdp2": ("dp_shard",),
    "cp": ("cp",),
    "tp": ("tp",),
}
"""Dimensions of a device mesh by the layouts that go together, outermost first, named and ordered
as torchtitan and accelerate's ``ParallelismConfig`` do."""
_INSIDE = ("pp", "ep", "cp", "tp")
"""Layouts inside of data parallelism; the first of a plan's is the one that places its model."""


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """A process among several that train together, with its device."""

    number: int
    spread: Spread
    device: Any
    """A ``torch.device`` with an index."""
    options: dict[str, Any]
    """Arguments of the wrapper, by its own names."""
    move: Callable[[torch.nn.Module], Any]
    """Gives a model memory and values on the device, in the order of ``Module.to``."""
    filler: Callable[[torch.nn.Module], Callable[[torch.nn.Module], None]]
    """Looks at a model, and returns what gives it values once it has memory."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A way to spread a model over GPUs."""

    name: str
    summary: str
    """In a few words, for help texts."""
    place: Callable[[torch.nn.Module, Rank], torch.nn.Module]
    """Takes a model on the meta device; returns what the loop calls, on this rank's device."""
    divide: Callable[[torch.nn.Module, Rank, Any], None] | None = None
    """Divides a model on the meta device by its dimension of a mesh, inside of data parallelism."""
    options: tuple[str, ...] = ()
    """Arguments of the wrapper that a plan may set."""
    mixed: tuple[str, ...] = ()
    """Arguments that hold the dtype of mixed precision, as accelerate sets them."""
    casts: bool = False
    """The wrapper casts the inputs of its units, so the forward runs without autocast."""
    groups: Callable[[torch.nn.Module], list[Any]] | None = None
    """Makes the optimizer's groups, if not all parameters that train are one group."""
    optimizer: Callable[..., torch.optim.Optimizer] | None = None
    """Makes the optimizer of a class, parameters and arguments, if the class itself does not."""
    quiet: Callable[[torch.nn.Module, bool], contextlib.AbstractContextManager[None]] | None = None
    """Makes the context of a micro-batch; True: it is the last before the optimizer steps."""
    clip: Callable[[torch.nn.Module, float], Any] | None = None
    """Clips gradients to a norm, if ``torch.nn.utils.clip_grad_norm_`` does not."""
    even: Callable[[torch.nn.Module, Spread], bool] | None = None
    """Returns True if all ranks hold equally much of a model; left out: they do."""
    dimensions: int = 1
    """How many sizes follow its name."""
    check: Callable[[Plan], None] | None = None
    """Raises ``UsageError`` where settings of a plan do not go together."""
    checked: Callable[[torch.nn.Module], Callable[[torch.nn.Module], None]] | None = None
    """Looks at a model before it is wrapped, and returns a check of the wrapped one."""
    handed_over: Callable[[torch.nn.Module, Rank], torch.nn.Module] | None = None
    """In place of ``place`` under a loop that wraps by accelerate: gives the model to it as its
    users do. Without it such loops do not run the layout."""
    loop: str = ""
    """The loop that drives it where its library takes over backward and update; empty: any."""
    package: str = ""
    """The package that it needs beside PyTorch."""


def find(name: str) -> Layout:
    """Return the parallel layout with this name.

    Raises:
        UsageError: no layout has it.
    """
    if name not in names():
        known = [one for one in names() if one != SINGLE]
        raise unknown("layout", name, known, hint=f"choose one of {', '.join(known)}.")
    layout: Layout = importlib.import_module(f"{__name__}.{name}").LAYOUT
    return layout


@functools.cache
def names() -> tuple[str, ...]:
    """Return the names of all parallel layouts."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(__path__)))


@functools.cache
def driven() -> tuple[str, ...]:
    """Return the layouts under which accelerate or the Trainer wraps the model."""
    return tuple(name for name in names() if find(name).handed_over is not None)


NO_SYNC = "no_sync"
"""False: gradients are exchanged with every micro-batch; no argument of a wrapper."""
_AUTOCAST = "autocast"
"""True: the forward runs under autocast beside mixed precision; no argument of a wrapper."""
_SWITCHES = frozenset(
    """
    autocast broadcast_buffers find_unused_parameters forward_prefetch gradient_as_bucket_view
    divide_embedding no_sync sequence_parallel static_graph use_orig_params
    """.split()
)
"""Arguments that Python would take for set if they were text."""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


_VALUES: dict[str, tuple[Callable[[Any], bool], str]] = {
    **dict.fromkeys(_SWITCHES, (lambda value: isinstance(value, bool), "true or false")),
    **dict.fromkeys(("load", "offload"), (lambda value: value == "cpu", "cpu")),
    "reshard_after_forward": (
        lambda value: isinstance(value, int),
        "true, false or a number of GPUs",
    ),
    "auto_wrap_policy": (
        lambda value: str(value).upper() in WRAPS,
        f"one of {', '.join(WRAPS)}",
    ),
    "min_num_params": (
        lambda value: _is_number(value) and float(value).is_integer() and value >= 0,
        "a number of parameters",
    ),
    "bucket_cap_mb": (lambda value: _is_number(value) and value > 0, "a number above 0"),
    "sharding_strategy": (
        lambda value: str(value).upper().removeprefix("_") in STRATEGIES,
        f"one of {', '.join(STRATEGIES)}",
    ),
    "backward_prefetch": (
        lambda value: str(value).upper() in PREFETCHES,
        f"one of {', '.join(PREFETCHES)}",
    ),
    "device_mesh": (
        lambda value: _parse_mesh(value) is not None,
        "replicas by shards, such as 2x8",
    ),
}
"""Values that arguments may have, and how to say so; wrappers check all other arguments."""


def _parse_mesh(value: Any) -> tuple[int, ...] | None:
    """Parse a mesh such as ``2x8`` into (replicas, shards), or return None."""
    found = re.fullmatch(r"([0-9]{1,7})x([0-9]{1,7})", str(value))
    return (int(found[1]), int(found[2])) if found else None


def of(plan: Plan) -> Layout:
    """Return a plan's parallel layout, after checking its ``parallel_args``.

    Raises:
        UsageError: as ``spread``; or the wrapper has no such argument, or not with this value.
    """
    over = spread(plan)
    layout, inner = find(over.layout), [find(name) for name in _inner_layouts(over)]
    if inner:
        options = {name for one in (layout, *inner) for name in one.options}
        layout = replace(layout, options=tuple(sorted(options)))
    known = (*layout.options, NO_SYNC) if layout.quiet else layout.options
    for name, value in plan.parallel_args:
        if name not in known:
            raise UsageError(
                f"--parallel-arg {name} is not one that memcalc gives to "
                f"{plan.parallel if inner else layout.name}: there are "
                f"{', '.join(known) or 'none'}."
            )
        accepts, wanted = _VALUES.get(name, (None, ""))
        if accepts is not None and not accepts(value):
            raise UsageError(f"--parallel-arg {name}={value} is not {wanted}.")
    for one in (layout, *inner):
        if one.check is not None:
            one.check(plan)
    if plan.loop != "plain" and layout.handed_over is not None:
        return replace(layout, place=layout.handed_over)
    return layout


def _inner_layouts(over: Spread) -> list[str]:
    """Return the names of the layouts combined inside the outermost one."""
    found = [*over.inside]
    if over.layout in _INSIDE:
        found += ["fsdp2"] if over.sharding else ["ddp"] if "dp_replicate" in over.axes else []
    return [name for name in found if name != over.layout]


def arguments(plan: Plan) -> dict[str, Any]:
    """Return the keyword arguments of a plan's wrapper, with its mixed-precision dtypes."""
    own = (NO_SYNC, _AUTOCAST)
    given = {name: value for name, value in plan.parallel_args if name not in own}
    if not mixes(plan):
        return given
    return {**dict.fromkeys(_mixed_arguments(plan), AUTOCAST_DTYPES[plan.precision]), **given}


def mixes(plan: Plan) -> bool:
    """Return True if FSDP gathers weights in the plan's 16-bit dtype."""
    half = AUTOCAST_DTYPES.get(plan.precision)
    chosen = str(dict(plan.parallel_args).get("param_dtype", half))
    return bool(_mixed_arguments(plan)) and half == DTYPES.get(chosen, chosen)


def autocasts(plan: Plan) -> bool:
    """Return True if the forward of the plain loop runs under autocast."""
    replaced = find(spread(plan).layout).casts and mixes(plan)
    asked = dict(plan.parallel_args).get(_AUTOCAST) is True
    return plan.precision in AUTOCAST_DTYPES and (asked or not replaced)


def autocasts_fp32_units(plan: Plan) -> bool:
    """Return True if FSDP gathers fp32 weights and autocast copies them to 16 bit."""
    sharded = bool(_mixed_arguments(plan)) and not plan.half_weights
    return sharded and autocasts(plan) and not mixes(plan)


def _mixed_arguments(plan: Plan) -> tuple[str, ...]:
    """Return the names of the wrapper's mixed-precision dtype arguments."""
    over = spread(plan)
    if over.layout in _INSIDE:
        return find("fsdp2").mixed if over.sharding else ()
    return find(over.layout).mixed


def replicas(plan: Plan) -> int:
    """Return the number of ranks that train on different samples (data-parallel degree)."""
    over = spread(plan)
    return over.world // math.prod(over.axes.get(name, 1) for name in ("pp", "cp", "tp"))


def microbatches(plan: Plan) -> int:
    """Return the number of micro-batches of a pipeline step; 1 without pipeline stages."""
    if spread(plan).stages == 1:
        return 1
    return int(dict(plan.parallel_args).get("n_microbatches") or plan.batch)


def chosen_rank(rank: int | str | None, world: int) -> int:
    """Return the rank number that a plan names: a number, ``last``, or 0.

    Raises:
        UsageError: there are not that many processes.
    """
    if isinstance(rank, int) and rank >= world:
        raise UsageError(f"--rank {rank} of {world} processes: they count from 0.")
    return rank if isinstance(rank, int) else world - 1 if rank == "last" else 0


def spread(plan: Plan) -> Spread:
    """Parse a plan's ``parallel`` and ``devices``, such as ``tp=2,fsdp2=4``, as mesh dimensions.

    Raises:
        UsageError: it is not one, or its sizes do not make the devices.
    """
    if plan.parallel is None and plan.devices == 1:
        return Spread(layout=SINGLE, axes={})
    text = plan.parallel or DEFAULT
    named = _parse_layouts(text)
    inside = [name for name in _INSIDE if name in named]
    if inside:
        return _combine_layouts(plan, text, named, inside[0])
    ((layout, sizes),) = _fill_size(plan, text, named).items()
    mesh = _parse_mesh(dict(plan.parallel_args).get("device_mesh"))
    if mesh is not None and math.prod(mesh) != math.prod(sizes):
        raise UsageError(
            f"--parallel-arg device_mesh={mesh[0]}x{mesh[1]} makes {math.prod(mesh)} devices, and "
            f"there are {math.prod(sizes)}: their product must be the number of devices."
        )
    sizes = mesh or sizes
    dimensions = _DIMENSIONS["hsdp"] if len(sizes) > 1 else _DIMENSIONS.get(layout, ("dp_shard",))
    return Spread(layout=layout, axes=dict(zip(dimensions, sizes, strict=True)))


def _combine_layouts(
    plan: Plan, text: str, named: dict[str, tuple[int, ...]], layout: str
) -> Spread:
    """Return the mesh of a combination of layouts, such as ``pp=2,tp=2,fsdp2=2``.

    Raises:
        UsageError: their sizes do not make the devices.
    """
    (experts,) = named.get("ep", (1,)) or (0,)
    sized = {name: sizes for name, sizes in named.items() if name != "ep"}
    if "ep" in named and not {"fsdp2", "hsdp"} & sized.keys():
        # Experts lie among the ranks that shard the rest of the model.
        alone = plan.devices == 1
        inner = math.prod(sized.get(name, (1,))[0] for name in ("cp", "tp"))
        sized["fsdp2"] = (max(1, experts // inner),) if alone and experts else ()
    sized = _fill_size(plan, text, sized)
    # A dimension of one rank is none, unless it was asked for.
    axes = {
        dimension: size
        for name, dimensions in _DIMENSIONS.items()
        for dimension, size in zip(dimensions, sized.get(name, ()), strict=False)
        if size > 1 or dimension in named
    }
    within = math.prod(axes.get(name, 1) for name in ("dp_shard", "cp", "tp"))
    return Spread(layout=layout, axes=axes, experts=experts or within)


def _parse_layouts(text: str) -> dict[str, tuple[int, ...]]:
    """Parse ``--parallel`` into layout names and their sizes.

    Raises:
        UsageError: they do not go together.
    """
    parts = [_parse_layout(word) for word in text.split(",")]
    named = dict(parts)
    data = [name for name in named if name not in _INSIDE]
    alone = [name for name in data if name not in _DIMENSIONS]
    if len(named) < len(parts) or len(data) > 1 or (alone and len(named) > 1):
        raise UsageError(
            f"--parallel {text!r} is not understood: one of ddp, fsdp2 and hsdp goes together "
            "with pp, ep, cp and tp, each once, such as pp=2,tp=2,fsdp2=2."
        )
    if data == ["ddp"] and set(named) - {"ddp", "pp"}:
        raise UsageError(
            f"--parallel {text!r}: DistributedDataParallel is not supported in a mesh of more "
            "dimensions (as torchtitan says): write fsdp2 or hsdp in place of ddp."
        )
    return named


def _parse_layout(word: str) -> tuple[str, tuple[int, ...]]:
    name, equals, size = word.strip().partition("=")
    layout = find(name if name != SINGLE else "")
    words = size.split("x") if equals else []
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 16 for part in words):
        raise UsageError(f"{word!r} in --parallel is not understood: write it like {name}=2.")
    if len(words) != layout.dimensions and (words or layout.dimensions > 1):
        example = "x".join("24"[: layout.dimensions])
        raise UsageError(f"--parallel {word} has another shape: write it like {name}={example}.")
    return name, tuple(map(int, words))


def _fill_size(
    plan: Plan, text: str, named: dict[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the sizes of layouts, with the remaining devices for one without a size."""
    world = math.prod(size for sizes in named.values() for size in sizes)
    missing = sum(not sizes for sizes in named.values())
    if missing > 1 or (not missing and plan.devices not in (1, world)):
        raise UsageError(
            f"--parallel {text} makes {world} devices, and --devices says {plan.devices}: their "
            "product must be the number of devices (ep adds none)."
        )
    if plan.devices % world and missing:
        raise UsageError(f"--devices {plan.devices} cannot be divided by {world} ({text}).")
    rest = (plan.devices // world,)
    return {name: sizes or rest for name, sizes in named.items()}
