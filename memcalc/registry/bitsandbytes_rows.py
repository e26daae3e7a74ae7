"""bitsandbytes.optim: states in 8 bit with a scale per 256 elements, or in 32 bit; paged or not.

Source: bitsandbytes 0.50.2, optim/optimizer.py (``init_state``, ``get_state_buffer``),
optim/ademamix.py; every row is compared with the real class. The dtype of the state does not
follow the parameter's. memcalc's own optimizers, which keep states in the same form, stand below
(docs/optimizers.md).
"""

import fnmatch
from math import ceil

from memcalc.records.model import Parameter, Place
from memcalc.registry.row import (
    COMMON,
    MIN_8BIT_SIZE,
    Args,
    Layout,
    OnCuda,
    Piece,
    Refusal,
    Row,
    keeps,
    number,
)
from memcalc.version import installed

BLOCK = 256
PAGED_FROM = 100_000
"""Elements from which a paged optimizer puts a state in managed memory."""
_MAP = 256
_NO_CLIPPING = 100
"""The percentile that clips nothing; below it 100 gradient norms are kept for each tensor."""
_TWO, _ONE, _MIX = "two", "one", "mix"


def in_8bit(parameter: Parameter, args: Args) -> bool:
    """Is this tensor's state kept in 8 bit?"""
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


def _place(numel: int, args: Args) -> Place:
    return Place.MANAGED if args.get("is_paged") and numel >= PAGED_FROM else Place.DEVICE


def _layout(family: str, *, norm: bool = False) -> Layout:
    def layout(parameter: Parameter, args: Args) -> list[Piece]:
        n = parameter.numel
        first = 2 * n if family == _MIX else n
        dtype = "uint8" if in_8bit(parameter, args) else "float32"
        # The size of the parameter decides, also for AdEMAMix' double first state.
        pieces: list[Piece] = [("state1", dtype, first, _place(n, args))]
        if family != _ONE:
            pieces.append(("state2", dtype, n, _place(n, args)))
        if dtype == "uint8":
            blocks = ceil(n / BLOCK)
            scales = 2 * blocks if family == _MIX else blocks
            pieces.append(("absmax1", "float32", scales, Place.DEVICE))
            if family != _ONE:
                pieces.append(("absmax2", "float32", blocks, Place.DEVICE))
        if number(args, "percentile_clipping", _NO_CLIPPING) < _NO_CLIPPING:
            pieces.append(("gnorm_vec", "float32", _NO_CLIPPING, Place.DEVICE))
        if norm and number(args, "max_unorm") > 0:
            pieces.append(("unorm_vec", "float32", 1, Place.DEVICE))
        return pieces

    return layout


def _shared(family: str) -> object:
    def shared(any_8bit: bool, args: Args) -> list[Piece]:
        names = ("qmap1",) if family == _ONE else ("qmap1", "qmap2")
        return [(name, "float32", _MAP, Place.DEVICE) for name in names] if any_8bit else []

    return shared


def _without_kernel(name: str) -> OnCuda:
    """What bitsandbytes' tables of CUDA kernels leave out: it raises at the first such tensor.

    Source: bitsandbytes 0.50.2, backends/cuda/ops.py, ``str2optimizer32bit`` and
    ``str2optimizer8bit_blockwise``; each refusal was seen.
    """

    def refuse(parameter: Parameter, args: Args) -> str | None:
        if in_8bit(parameter, args):
            if name in ("LAMB", "LARS"):
                return (
                    f"bitsandbytes 0.50.2 has no kernel for {name} with 8-bit states "
                    f"(--optim {name.lower()} keeps them in 32 bit)"
                )
        elif parameter.dtype == "bfloat16" and name in ("SGD", "RMSprop", "Adagrad", "LARS"):
            return (
                f"bitsandbytes 0.50.2 has no kernel for {name} with bf16 gradients and 32-bit "
                f"states, as {parameter.name} would need (--precision amp-bf16 has fp32 gradients)"
            )
        return None

    return refuse


_BROKEN = (
    "bitsandbytes 0.50.2 allocates half of its first state and fails at the first step "
    "(bitsandbytes issue 2075): use ademamix, which is right"
)
_UNTRACEABLE = "its update is one call of bitsandbytes' own kernel"
_FAMILIES: tuple[tuple[str, str, int, bool, tuple[str, ...], Args], ...] = (
    # class, family, rule for 32 bit, paged exists, further arguments, defaults
    ("Adam", _TWO, 8, True, ("amsgrad",), {}),
    ("AdamW", _TWO, 8, True, ("amsgrad",), {}),
    ("AdEMAMix", _MIX, 12, True, ("alpha", "t_alpha", "t_beta3"), {}),
    ("Lion", _ONE, 4, True, (), {}),
    ("LAMB", _TWO, 8, False, ("amsgrad", "bias_correction", "adam_w_mode"), {"max_unorm": 1.0}),
    ("SGD", _ONE, 4, False, ("dampening", "nesterov"), {"momentum": 0.9}),
    ("RMSprop", _ONE, 4, False, ("alpha", "momentum"), {"centered": False}),
    ("Adagrad", _ONE, 4, False, ("lr_decay", "initial_accumulator_value"), {}),
    ("LARS", _ONE, 4, False, ("dampening", "nesterov"), {"momentum": 0.9, "max_unorm": 0.02}),
)
_HF = {
    "AdamW8bit": ("adamw_8bit", "adamw_bnb_8bit"),
    "Lion32bit": ("lion_32bit",),
    "RMSprop": ("rmsprop_bnb",),
    "RMSprop8bit": ("rmsprop_bnb_8bit",),
    "RMSprop32bit": ("rmsprop_bnb_32bit",),
    "PagedAdEMAMix": ("paged_ademamix_32bit",),
}
_LACKS = {
    "Lion": ("eps",),
    "SGD": ("betas", "eps"),
    "LARS": ("betas", "eps"),
    "RMSprop": ("betas",),
    "Adagrad": ("betas",),
}
"""Arguments of most optimizers that these do not take; ``maximize`` none does."""
_NAME = {"RMSprop", "SGD", "Adam", "AdamW", "Adagrad"}
"""Names that torch.optim has too: bitsandbytes' 32-bit ones are named with their package."""


def _row(
    name: str,
    family: str,
    rule: int,
    paged: bool,
    bits: int | None,
    takes: tuple[str, ...],
    more: Args,
) -> Row:
    class_name = f"{'Paged' if paged else ''}{name}{f'{bits}bit' if bits else ''}"
    defaults: Args = {
        "optim_bits": bits or 32,
        "min_8bit_size": MIN_8BIT_SIZE,
        "32bit": None,
        "percentile_clipping": _NO_CLIPPING,
        "is_paged": paged,
        **more,
    }
    short = class_name.lower()
    width = "8-bit states, scale per 256" if bits == 8 else "32-bit states"
    return Row(
        name=f"bitsandbytes.{short}" if class_name in _NAME else short,
        implementation=f"bitsandbytes.optim.{class_name}",
        summary=f"{width}, large ones in managed memory" if paged else width,
        layout=_layout(family, norm=name in ("LAMB", "LARS")),
        aliases=_HF.get(class_name, ()),
        defaults=defaults,
        takes=(*(a for a in COMMON if a not in (*_LACKS.get(name, ()), "maximize")), *takes),
        shared=_shared(family),  # type: ignore[arg-type]
        in_8bit=in_8bit,
        twin_8bit=f"{'paged' if paged else ''}{name.lower()}8bit" if bits != 8 else None,
        rule=rule / 4 if bits == 8 else rule,
        package="bitsandbytes",
        untraceable=_UNTRACEABLE,
        refuse_on_cuda=_without_kernel(name),
        refuse=_refusal(name, paged, bits),
    )


def _refusal(name: str, paged: bool, bits: int | None) -> Refusal:
    """Refuse what bitsandbytes does not have, and what a class's name has settled.

    Source: the constructors of bitsandbytes 0.50.2, each tried: they refuse it, ignore it or lack
    it.
    """
    wide = f"bitsandbytes.{name.lower()}" if name in _NAME else name.lower()
    other = f"{'paged' if paged else ''}{name.lower()}{8 if bits == 32 else 32}bit"

    def refuse(args: Args) -> str | None:
        clips = number(args, "percentile_clipping", _NO_CLIPPING) < _NO_CLIPPING
        version = (installed("bitsandbytes") or "").split(".")
        rules = {
            _BROKEN: name == "AdEMAMix" and bits == 32,
            "percentile_clipping was removed in bitsandbytes 0.50: leave it out": clips
            and all(part.isdigit() for part in version[:2])
            and [*map(int, version[:2])] >= [0, 50],
            f"its states have {bits} bits, whatever optim_bits says: use {other}": bits
            and args["optim_bits"] != bits,
            f"it is paged, whatever is_paged says: use {wide}": paged and not args.get("is_paged"),
            "bitsandbytes cannot page its states: leave is_paged out": args.get("is_paged")
            and name not in ("Adam", "AdamW", "AdEMAMix", "Lion"),
            "bitsandbytes' optimizers have no amsgrad": args.get("amsgrad"),
            "bitsandbytes refuses momentum = 0: add --optim-arg momentum=0.9": name
            in ("SGD", "LARS")
            and number(args, "momentum") == 0,
            "bitsandbytes' RMSprop cannot be centered": args.get("centered"),
        }
        return next((why for why, refused in rules.items() if refused), None)

    return refuse


def _own(name: str, class_name: str) -> Row:
    return Row(
        name=f"memcalc.{name}",
        implementation=f"memcalc.optim.{class_name}",
        summary="8-bit states, scale per 256",
        layout=_layout(_TWO),
        defaults={"optim_bits": 8, "min_8bit_size": MIN_8BIT_SIZE, "32bit": None},
        shared=_shared(_TWO),  # type: ignore[arg-type]
        in_8bit=in_8bit,
        takes=COMMON,
        rule=2,
        package="memcalc",
    )


ROWS = (
    *(
        _row(name, family, rule, paged, bits, takes, more)
        for name, family, rule, pages, takes, more in _FAMILIES
        for paged in ((False, True) if pages else (False,))
        for bits in (None, 8, 32)
    ),
    _own("adamw8bit", "AdamW8bit"),
    _own("adam8bit", "Adam8bit"),
    Row(
        name="memcalc.adamw_bf16",
        implementation="memcalc.optim.AdamWBF16",
        summary="two moments and a correction term in bf16",
        layout=keeps("exp_avg", "exp_avg_sq", "shift", dtype="bfloat16"),
        takes=COMMON,
        rule=6,
        package="memcalc",
        aliases=("adamwbf16", "adamw_bf16"),
        precision="bf16",
    ),
)
