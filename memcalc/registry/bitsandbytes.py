"""bitsandbytes.optim: states in 8 bit with a scale per 256 elements, or in 32 bit; paged or not.

Source: bitsandbytes 0.50.2, optim/optimizer.py (``init_state``, ``get_state_buffer``),
optim/ademamix.py; every row is compared with the real class. The dtype of the state does not
follow the parameter's. memcalc's own optimizers of 8 bit keep states in the same form
(docs/optimizers.md).
"""

import fnmatch
from collections.abc import Iterable
from math import ceil
from typing import Any

import msgspec

from memcalc.records.model import Parameter, Place
from memcalc.records.values import Scalar
from memcalc.registry.row import (
    COMMON,
    MIN_8BIT_SIZE,
    Args,
    Layout,
    Piece,
    Refusal,
    Row,
    number,
)

BLOCK = 256
PAGED_FROM = 100_000
"""Elements from which a paged optimizer puts a state in managed memory."""
_MAP = 256
_NO_CLIPPING = 100
"""The percentile that clips nothing; below it 100 gradient norms are kept for each tensor."""
_TORCH_NAMES = {"RMSprop", "SGD", "Adam", "AdamW", "Adagrad"}
"""Names that torch.optim has too: bitsandbytes' 32-bit ones are named with their package."""


class Family(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Classes of one algorithm, as optimizers.toml has them."""

    name: str = msgspec.field(name="class")
    rule: float
    """Bytes of 32-bit state per parameter."""
    first: int = 1
    """Elements of the first state for each of the parameter."""
    second: int = 1
    """The same of the second state."""
    paged: bool = False
    """There are paged classes."""
    takes: str = ""
    lacks: str = ""
    """Arguments of most optimizers that these do not take; ``maximize`` none does."""
    defaults: dict[str, Scalar] = {}
    aliases: dict[str, tuple[str, ...]] = {}
    """The Trainer's names, by class."""


def in_8bit(parameter: Parameter, args: Args) -> bool:
    """Return True if the optimizer state of a parameter is kept in 8 bit."""
    if args.get("optim_bits", 32) != 8:
        return False
    patterns = str(args.get("32bit") or "").split(",")
    if any(pattern and fnmatch.fnmatch(parameter.name, pattern) for pattern in patterns):
        return False
    if parameter.module == "StableEmbedding" or (
        args.get("_trainer") and parameter.module == "Embedding"
    ):
        return False
    return parameter.numel >= number(args, "min_8bit_size", MIN_8BIT_SIZE)


def _make_layout(family: Family) -> Layout:
    """Return a function that describes the state of one parameter."""
    norm = family.name in ("LAMB", "LARS")

    def layout(parameter: Parameter, args: Args) -> list[Piece]:
        n = parameter.numel
        states = [(1, family.first), *([(2, 1)] if family.second else [])]
        dtype = "uint8" if in_8bit(parameter, args) else "float32"
        # The size of the parameter decides, also for AdEMAMix' double first state.
        paged = args.get("is_paged") and n >= PAGED_FROM
        place = Place.MANAGED if paged else Place.DEVICE
        found: list[Piece] = [(f"state{at}", dtype, times * n, place) for at, times in states]
        if dtype == "uint8":
            blocks = ceil(n / BLOCK)
            found += [(f"absmax{at}", "float32", times * blocks, Place.DEVICE)
                      for at, times in states]  # fmt: skip
        if number(args, "percentile_clipping", _NO_CLIPPING) < _NO_CLIPPING:
            found.append(("gnorm_vec", "float32", _NO_CLIPPING, Place.DEVICE))
        if norm and number(args, "max_unorm") > 0:
            found.append(("unorm_vec", "float32", 1, Place.DEVICE))
        return found

    return layout


def _make_shared_layout(family: Family) -> Any:
    names = ("qmap1", "qmap2") if family.second else ("qmap1",)

    def shared(any_8bit: bool, args: Args) -> list[Piece]:
        return [(name, "float32", _MAP, Place.DEVICE) for name in names] if any_8bit else []

    return shared


_BROKEN = (
    "bitsandbytes 0.50.2 allocates half of its first state and fails at the first step "
    "(bitsandbytes issue 2075): use ademamix, which is right"
)
_UNTRACEABLE = "its update is one call of bitsandbytes' own kernel"


def _make_row(family: Family, paged: bool, bits: int | None) -> Row:
    name = family.name
    class_name = f"{'Paged' if paged else ''}{name}{f'{bits}bit' if bits else ''}"
    short = class_name.lower()
    width = "8-bit states, scale per 256" if bits == 8 else "32-bit states"
    lacks = (*family.lacks.split(), "maximize")
    return Row(
        name=f"bitsandbytes.{short}" if class_name in _TORCH_NAMES else short,
        implementation=f"bitsandbytes.optim.{class_name}",
        summary=f"{width}, large ones in managed memory" if paged else width,
        layout=_make_layout(family),
        aliases=family.aliases.get(class_name, ()),
        defaults={
            "optim_bits": bits or 32,
            "min_8bit_size": MIN_8BIT_SIZE,
            "32bit": None,
            "percentile_clipping": _NO_CLIPPING,
            "is_paged": paged,
            **family.defaults,
        },
        takes=(*(one for one in COMMON if one not in lacks), *family.takes.split()),
        shared=_make_shared_layout(family),
        in_8bit=in_8bit,
        twin_8bit=f"{'paged' if paged else ''}{name.lower()}8bit" if bits != 8 else None,
        rule=family.rule / 4 if bits == 8 else family.rule,
        package="bitsandbytes",
        untraceable=_UNTRACEABLE,
        refuse=_make_refusal(family, paged, bits),
    )


def _make_refusal(family: Family, paged: bool, bits: int | None) -> Refusal:
    """Return a check of arguments that a class accepts and ignores; the class checks the others.

    Source: the constructors of bitsandbytes 0.50.2, each tried.
    """
    name = family.name
    wide = f"bitsandbytes.{name.lower()}" if name in _TORCH_NAMES else name.lower()
    other = f"{'paged' if paged else ''}{name.lower()}{8 if bits == 32 else 32}bit"

    def refuse(args: Args) -> str | None:
        if name == "AdEMAMix" and bits == 32:
            return _BROKEN
        if bits and args["optim_bits"] != bits:
            return f"its states have {bits} bits, whatever optim_bits says: use {other}"
        if paged and not args.get("is_paged"):
            return f"it is paged, whatever is_paged says: use {wide}"
        return "bitsandbytes' optimizers have no amsgrad" if args.get("amsgrad") else None

    return refuse


def rows(families: Iterable[Family]) -> list[Row]:
    """Return the registry rows of bitsandbytes' optimizers, and of memcalc's with equal states."""
    found = [
        _make_row(family, paged, bits)
        for family in families
        for paged in ((False, True) if family.paged else (False,))
        for bits in (None, 8, 32)
    ]
    two = Family(name="", rule=8)
    own = {
        name: Row(
            name=f"memcalc.{name.lower()}",
            implementation=f"memcalc.optim.{name}",
            summary="8-bit states, scale per 256",
            layout=_make_layout(two),
            defaults={"optim_bits": 8, "min_8bit_size": MIN_8BIT_SIZE, "32bit": None},
            shared=_make_shared_layout(two),
            in_8bit=in_8bit,
            takes=COMMON,
            rule=2,
            package="memcalc",
        )
        for name in ("AdamW8bit", "Adam8bit")
    }
    return [*found, *own.values()]
