"""How a run is spread over GPUs: one file a layout, as a user of its library would write it.

A layout puts a model that has no memory yet (on the meta device) on this rank's device, makes the
optimizer over what is there then, and says what else the loop does otherwise. The same files serve
real and simulated runs; a process group of the right size is there already.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import math
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from memcalc.errors import UsageError, unknown
from memcalc.records.names import AUTOCAST_DTYPES, DTYPES, STRATEGIES, WRAPS
from memcalc.records.plan import Plan
from memcalc.workload.spread import Spread

if TYPE_CHECKING:
    import torch

SINGLE = "single"
DEFAULT = "ddp"
"""Of several GPUs without a layout."""
SHARDED = ("fsdp2", "hsdp")
"""Layouts that divide the weights of a base in 4 bit; others leave it whole, or cannot take it."""
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
    """One process among those that train together, and what it trains on."""

    number: int
    spread: Spread
    device: Any
    """A ``torch.device`` with an index."""
    options: dict[str, Any]
    """Arguments of the wrapper, by its own names."""
    move: Callable[[torch.nn.Module], Any]
    """Gives a model memory and values on the device, in the order of ``Module.to``."""
    filler: Callable[[torch.nn.Module], Callable[[torch.nn.Module], None]]
    """Makes, of a model as it is, what gives values to it once it got its memory."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """A way over GPUs."""

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
    """The wrapper casts what goes through its units, so the forward runs without autocast."""
    groups: Callable[[torch.nn.Module], list[Any]] | None = None
    """What the optimizer is made over, if not over all parameters that train."""
    optimizer: Callable[..., torch.optim.Optimizer] | None = None
    """Makes the optimizer of a class, parameters and arguments, if the class itself does not."""
    quiet: Callable[[torch.nn.Module, bool], contextlib.AbstractContextManager[None]] | None = None
    """What a micro-batch runs in; told whether it is the last before the optimizer steps."""
    clip: Callable[[torch.nn.Module, float], Any] | None = None
    """Clips gradients to a norm, if ``torch.nn.utils.clip_grad_norm_`` does not."""
    even: Callable[[torch.nn.Module, Spread], bool] | None = None
    """Do all ranks hold equally much of a model? If not said, they do."""
    dimensions: int = 1
    """Sizes that its name is followed by."""
    check: Callable[[Plan], None] | None = None
    """Raises ``UsageError`` where settings of a plan do not go together."""
    checked: Callable[[torch.nn.Module], Callable[[torch.nn.Module], None]] | None = None
    """Looks at a model before it is wrapped, and gives what then checks the wrapped one."""
    handed_over: Callable[[torch.nn.Module, Rank], torch.nn.Module] | None = None
    """In place of ``place`` under a loop that wraps by accelerate: gives the model to it as its
    users do. ``None``: such loops are not answered with it."""
    loop: str = ""
    """The loop that drives it where its library takes over backward and update; empty: any."""
    package: str = ""
    """What must be installed for it beside PyTorch."""


def find(name: str) -> Layout:
    """The layout of this name.

    Raises:
        UsageError: there is none.
    """
    known = _several()
    if name not in names():
        raise unknown("layout", name, known, hint=f"choose one of {', '.join(known)}.")
    layout: Layout = importlib.import_module(f"{__name__}.{name}").LAYOUT
    return layout


@functools.cache
def names() -> tuple[str, ...]:
    """All layouts, by the names of their files."""
    return tuple(sorted(info.name for info in pkgutil.iter_modules(__path__)))


@functools.cache
def driven() -> tuple[str, ...]:
    """Those over which accelerate and the Trainer are answered: they take the model themselves."""
    return tuple(name for name in _several() if find(name).handed_over is not None)


def _several() -> list[str]:
    return [name for name in names() if name != SINGLE]


_QUIET = "no_sync"
"""Whether gradients are exchanged with the last micro-batch alone; no argument of a wrapper."""
_AUTOCAST = "autocast"
"""Whether the forward runs under autocast beside mixed precision; no argument of a wrapper."""
_SWITCHES = frozenset(
    """
    autocast broadcast_buffers find_unused_parameters forward_prefetch gradient_as_bucket_view
    divide_embedding no_sync sequence_parallel static_graph use_orig_params
    """.split()
)
"""Arguments that Python would take for set whatever text they were given."""


def _refused(name: str, value: Any) -> str | None:
    """Why an argument cannot be this; ``None``: it can, or its wrapper says so itself."""
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name in _SWITCHES and not isinstance(value, bool):
        return "true or false"
    if name == "reshard_after_forward" and not isinstance(value, int):
        return "true, false or a number of GPUs"
    if name == "auto_wrap_policy" and str(value).upper() not in WRAPS:
        return f"one of {', '.join(WRAPS)}"
    if name == "min_num_params" and (not number or value != int(value) or value < 0):
        return "a number of parameters"
    if name == "bucket_cap_mb" and not (number and value > 0):
        return "a number above 0"
    if name in ("load", "offload") and value != "cpu":
        return "cpu"
    if name == "sharding_strategy" and str(value).upper().removeprefix("_") not in STRATEGIES:
        return f"one of {', '.join(STRATEGIES)}"
    if name == "device_mesh" and _mesh(value) is None:
        return "replicas by shards, such as 2x8"
    return None


def _mesh(value: Any) -> tuple[int, ...] | None:
    """Replicas by shards, as in ``2x8``."""
    words = str(value).split("x")
    known = len(words) == 2 and all(word.isascii() and word.isdigit() for word in words)
    return tuple(map(int, words)) if known and len(str(value)) < 16 else None


def of(plan: Plan) -> Layout:
    """The layout of a plan.

    Raises:
        UsageError: as ``spread``; or the wrapper has no such argument, or not with this value.
    """
    over = spread(plan)
    layout = find(over.layout)
    inner = _inner(over)
    if inner:
        taken = [layout.options, *(find(name).options for name in inner)]
        layout = replace(layout, options=tuple(sorted({name for one in taken for name in one})))
    known = (*layout.options, _QUIET) if layout.quiet else layout.options
    for name, value in plan.parallel_args:
        if name not in known:
            options = ", ".join(known) or "none"
            raise UsageError(
                f"--parallel-arg {name} is not one that memcalc gives to "
                f"{plan.parallel if inner else layout.name}: there are {options}."
            )
        wanted = _refused(name, value)
        if wanted is not None:
            raise UsageError(f"--parallel-arg {name}={value} is not {wanted}.")
    for one in (layout, *map(find, inner)):
        if one.check is not None:
            one.check(plan)
    if plan.loop != "plain" and layout.handed_over is not None:
        return replace(layout, place=layout.handed_over)
    return layout


def _inner(over: Spread) -> list[str]:
    """Name the layouts inside of the one that places the model."""
    found = [*over.inside]
    if over.layout in _INSIDE:
        found += ["fsdp2"] if over.sharding else ["ddp"] if "dp_replicate" in over.axes else []
    return [name for name in found if name != over.layout]


def arguments(plan: Plan) -> dict[str, Any]:
    """Return what a plan's wrapper is given: the plan's arguments, and dtypes of its precision."""
    own = (_QUIET, _AUTOCAST)
    given = {name: value for name, value in plan.parallel_args if name not in own}
    half = AUTOCAST_DTYPES[plan.precision] if mixes(plan) else None
    return {**dict.fromkeys(_mixed_arguments(plan), half), **given} if half else given


def mixes(plan: Plan) -> bool:
    """Return True if the wrapper gathers weights in the dtype of the plan's mixed precision."""
    half = AUTOCAST_DTYPES.get(plan.precision)
    chosen = str(dict(plan.parallel_args).get("param_dtype", half))
    return bool(_mixed_arguments(plan)) and half == DTYPES.get(chosen, chosen)


def autocasts(plan: Plan) -> bool:
    """Return True if the forward of a loop of one's own runs under autocast."""
    replaced = find(spread(plan).layout).casts and mixes(plan)
    asked = dict(plan.parallel_args).get(_AUTOCAST) is True
    return plan.precision in AUTOCAST_DTYPES and (asked or not replaced)


def autocasts_gathered(plan: Plan) -> bool:
    """Return True if autocast copies the weights of units that are gathered in fp32."""
    sharded = bool(_mixed_arguments(plan)) and not plan.half_weights
    return sharded and autocasts(plan) and not mixes(plan)


def _mixed_arguments(plan: Plan) -> tuple[str, ...]:
    """Return the arguments of mixed precision; tensor parallel alone gathers nothing."""
    over = spread(plan)
    gathers = over.layout not in _INSIDE or over.sharding
    return find("fsdp2" if over.layout in _INSIDE else over.layout).mixed if gathers else ()


def exchanges_each(plan: Plan) -> bool:
    """Gradients are exchanged with every micro-batch: ``no_sync`` is not used."""
    return dict(plan.parallel_args).get(_QUIET, True) is False


def replicas(plan: Plan) -> int:
    """Ranks that have samples of their own: stages, contexts and parts of products share theirs."""
    over = spread(plan)
    return over.world // math.prod(over.axes.get(name, 1) for name in ("pp", "cp", "tp"))


def checked_rank(plan: Plan) -> int:
    """The process that a plan asks about, the first if it asks about none or all.

    Raises:
        UsageError: there are not so many.
    """
    return chosen_rank(plan.rank, spread(plan).world)


def chosen_rank(rank: int | str | None, world: int) -> int:
    """The number of a rank that is named, of so many; the first where none or all are.

    Raises:
        UsageError: there are not so many.
    """
    if isinstance(rank, int) and rank >= world:
        raise UsageError(f"--rank {rank} of {world} processes: they count from 0.")
    return rank if isinstance(rank, int) else world - 1 if rank == "last" else 0


def spread(plan: Plan) -> Spread:
    """Read a plan's layout, such as ``fsdp2`` or ``tp=2,fsdp2=4``.

    Raises:
        UsageError: it is not one, or its sizes do not make the devices.
    """
    if plan.parallel is None and plan.devices == 1:
        return Spread(layout=SINGLE, axes={})
    text = plan.parallel or DEFAULT
    named = _parts(text)
    inside = [name for name in _INSIDE if name in named]
    if inside:
        return _meshed(plan, text, named, inside[0])
    ((layout, sizes),) = _sizes(plan, text, named).items()
    mesh = _mesh(dict(plan.parallel_args).get("device_mesh"))
    if mesh is not None and math.prod(mesh) != math.prod(sizes):
        raise UsageError(
            f"--parallel-arg device_mesh={mesh[0]}x{mesh[1]} makes {math.prod(mesh)} devices, and "
            f"there are {math.prod(sizes)}: their product must be the number of devices."
        )
    sizes = mesh or sizes
    names = _DIMENSIONS["hsdp" if len(sizes) > 1 else layout if layout in _DIMENSIONS else "fsdp2"]
    return Spread(layout=layout, axes=dict(zip(names, sizes, strict=True)))


def _meshed(plan: Plan, text: str, named: dict[str, tuple[int, ...]], layout: str) -> Spread:
    """Combine layouts in one device mesh.

    Raises:
        UsageError: their sizes do not make the devices.
    """
    (experts,) = named.get("ep", (1,)) or (0,)
    sized = {name: sizes for name, sizes in named.items() if name != "ep"}
    if "fsdp2" not in sized and "hsdp" not in sized and "ep" in named:
        # Experts lie among the ranks that shard the rest of the model.
        alone = plan.devices == 1
        inner = math.prod(sized.get(name, (1,))[0] for name in ("cp", "tp"))
        sized["fsdp2"] = (max(1, experts // inner),) if alone and experts else ()
    sized = _sizes(plan, text, sized)
    axes = {
        dimension: size
        for name, dimensions in _DIMENSIONS.items()
        for dimension, size in zip(dimensions, sized.get(name, ()), strict=False)
    }
    # A dimension of one rank is none, unless it was asked for.
    axes = {name: size for name, size in axes.items() if size > 1 or name in named}
    within = math.prod(axes.get(name, 1) for name in ("dp_shard", "cp", "tp"))
    return Spread(layout=layout, axes=axes, experts=experts or within)


def _parts(text: str) -> dict[str, tuple[int, ...]]:
    """Read the names and sizes in ``--parallel``.

    Raises:
        UsageError: they do not go together.
    """
    parts = [_part(word) for word in text.split(",")]
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


def _part(word: str) -> tuple[str, tuple[int, ...]]:
    name, equals, size = word.strip().partition("=")
    layout = find(name if name != SINGLE else "")
    words = size.split("x") if equals else []
    if not all(part.isascii() and part.isdigit() and 0 < int(part) < 1 << 16 for part in words):
        raise UsageError(f"{word!r} in --parallel is not understood: write it like {name}=2.")
    if len(words) != layout.dimensions and (words or layout.dimensions > 1):
        example = "x".join("24"[: layout.dimensions])
        raise UsageError(f"--parallel {word} has another shape: write it like {name}={example}.")
    return name, tuple(map(int, words))


def _sizes(plan: Plan, text: str, named: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Return the sizes of layouts; one without a size takes the devices that are left."""
    world = math.prod(size for sizes in named.values() for size in sizes)
    missing = sum(not sizes for sizes in named.values())
    if missing > 1 or (not missing and plan.devices not in (1, world)):
        raise UsageError(
            f"--parallel {text} makes {world} devices, and --devices says {plan.devices}: their "
            "product must be the number of devices."
        )
    if plan.devices % world and missing:
        raise UsageError(f"--devices {plan.devices} cannot be divided by {world} ({text}).")
    rest = (plan.devices // world,)
    return {name: sizes or rest for name, sizes in named.items()}
