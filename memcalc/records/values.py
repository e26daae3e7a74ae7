"""Values that users type, parsed and checked against a declared type.

Patterns are searched for by Python and by readers of JSON Schema (ECMA 262) alike.
"""

import re
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
from msgspec import Meta

from memcalc.errors import SettingError, unknown
from memcalc.records.model import DTYPE_BYTES

Scalar = (
    str
    | Annotated[int, Meta(ge=-(1 << 53), le=1 << 53)]
    | Annotated[float, Meta(ge=-1e300, le=1e300)]
    | bool
    | None
)
_WHOLE = re.compile(r"[+-]?[0-9](?:_?[0-9]){0,40}")
_DECIMAL = re.compile(r"[+-]?(?:(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|inf|nan)")
_WORDS: dict[str, Scalar] = {"true": True, "false": False, "none": None, "null": None}
_LONGEST = 60


def plain(kind: Any) -> type:
    """Return the Python type of a declared type: bool, int, float or str."""
    bare = kind.__origin__ if get_origin(kind) is Annotated else kind
    return bare if bare in (bool, int, float) else str


def scalar(text: str) -> Scalar:
    """Parse a text as a number, true, false or none, else return it without quotes."""
    text = text.strip()
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "\"'"
    return text[1:-1] if quoted else text


def format_scalar(value: Scalar) -> str:
    """Return a value as the text that ``scalar`` parses to it."""
    if value is None or isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if scalar(value) == value else f'"{value}"'
    return repr(value)


def format_setting(value: Any) -> str:
    """Return the value of a plan's field as people write it; pairs as ``name=value``."""
    if isinstance(value, tuple):
        pairs = (f"{one[0]}={one[1]}" if isinstance(one, tuple) else str(one) for one in value)
        return ", ".join(pairs) or "none"
    return format_scalar(value)


_FLASH_ATTN = (
    "Of flash-attn's kernels those of version 2 are known: type --attention flash_attention_2, or "
    "--attention flash for PyTorch's own build of them."
)
_GPTQMODEL = (
    "{} runs kernels of gptqmodel that are compiled on the GPU's machine, which memcalc cannot "
    "run: type --quant nf4 for 4 bit."
)
_OF_CHECKPOINTS = (
    "{} is a format of some checkpoints, such as {}: name such a model without --quant; --quant "
    "{} quantizes any model."
)
_FP8 = (
    "Weights and gradients of training in fp8 are in other types; only products run in it: type "
    "--precision amp-bf16 --float8 tensorwise (torchao's; Transformer Engine's memcalc cannot run)."
)
_NOT_RUN = {
    **{
        ("attention", name): _FLASH_ATTN
        for name in ("flash_attention_3", "flash_attention_4", "flash_attn")
    },
    **{("quant", name): _GPTQMODEL.format(name) for name in ("gptq", "awq")},
    ("quant", "mxfp4"): _OF_CHECKPOINTS.format("mxfp4", "gpt-oss", "nf4"),
    ("quant", "fp8"): _OF_CHECKPOINTS.format("fp8", "DeepSeek-V3", "torchao-float8"),
    **{("precision", name): _FP8 for name in ("fp8", "amp-fp8")},
}
"""Values of other tools that memcalc refuses, and why, by setting and value."""


def parse_value(name: str, kind: Any, text: str) -> Any:
    """Parse a value of this type from its text on the command line.

    Raises:
        SettingError: it is not understood.
    """
    parts = get_args(kind) if get_origin(kind) is Union else (kind,)
    numbers = any(plain(part) in (int, float) for part in parts)
    return check_value(name, kind, scalar(text) if numbers else text)


def check_value(name: str, kind: Any, value: Any) -> Any:
    """Convert a value to a declared type by msgspec, or raise SettingError.

    ``kind`` is a type, or one with limits as ``Annotated[int, Meta(ge=1, le=8)]``, but no union of
    a text that has a pattern with a list or table: msgspec 0.22 frees the pattern too often.

    Raises:
        SettingError: it has another type, is out of range, or is none of the choices.
    """
    if isinstance(value, float) and value.is_integer() and plain(kind) is int:
        # To JSON Schema, 8.0 is a whole number.
        value = int(value)
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError:
        raise refusal(name, kind, value) from None


def refusal(name: str, kind: Any, value: Any) -> SettingError:
    """Return the error for a value that does not have a declared type."""
    if get_origin(kind) is Literal:
        reason = _NOT_RUN.get((name.lstrip("-"), str(value)))
        if reason is not None:
            return SettingError(name, reason)
        hint = f"choose one of {', '.join(get_args(kind))}."
        return SettingError(
            name, str(unknown(name, str(value)[:_LONGEST], get_args(kind), hint=hint))
        )
    shown = " ".join(repr(list(value) if isinstance(value, tuple) else value).split())
    shown = shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}..."
    thousands = re.fullmatch(r"([0-9]{1,4})[kK]", str(value))
    type_ = f": type {1024 * int(thousands[1])}" if thousands and plain(kind) is int else ""
    return SettingError(name, f"{name} = {shown} is not {_describe_type(kind)}{type_}.")


def _describe_type(kind: Any) -> str:
    """Return a declared type in words, to follow ``is not``."""
    if get_origin(kind) is Union:
        return ", or ".join(map(_describe_type, get_args(kind)))
    if get_origin(kind) is Literal:
        return f"one of {', '.join(get_args(kind))}"
    if get_origin(kind) is dict:
        return "a table of names, each with a number, a text, true or false"
    if get_origin(kind) is tuple:
        return f"{_describe_type(get_args(kind)[0])}, or a list of such"
    if kind in (bool, str):
        return "true or false" if kind is bool else "a text"
    limits: dict[str, Any] = {}
    for meta in kind.__metadata__:
        known = {key: getattr(meta, key) for key in ("ge", "gt", "le", "title")}
        limits |= {key: value for key, value in known.items() if value is not None}
    if "title" in limits:
        return str(limits["title"])
    if plain(kind) is int:
        return f"a whole number from {limits['ge']} to {limits['le']:,}"
    least = f"above {limits['gt']}" if "gt" in limits else f"from {limits['ge']} on"
    return f"a number {least}"


def whole(pattern: str) -> str:
    """Return a regular expression that matches only the whole text."""
    return rf"^(?:{pattern})$(?!\n)"


def about(group: str, *, otherwise: str = "", option: str | None = "", typed: str = "") -> Meta:
    """Return metadata of a plan's field: its group, default in words, option and spelling."""
    return Meta(extra={"group": group, "otherwise": otherwise, "option": option, "typed": typed})


Pairs = tuple[tuple[str, Scalar], ...]
"""Arguments by their names."""
Method = Literal["trace", "analytic"]
"""How a plan is answered: its code runs on a simulated GPU, or closed forms stand for it."""
CompileMode = Literal["default", "reduce-overhead"]
"""Modes of ``torch.compile`` that are answered; the others choose kernels by timing them."""
Count = Annotated[int, Meta(ge=1, le=1 << 16)]
Text = Annotated[str, Meta(pattern=r"\S", title="a text that is not empty")]
Version = Annotated[
    str,
    Meta(
        pattern=whole(r"[0-9]+\.[0-9]+[0-9A-Za-z.+]*"), title="a version of PyTorch, such as 2.13"
    ),
]

Cache = Literal[
    "dynamic",
    "static",
    "sliding",
    "offloaded",
    "offloaded-static",
    "quantized",
    "quantized-hqq",
    "quantized-fp8",
]
"""How a generation keeps keys and values."""
Release = Annotated[
    str,
    Meta(
        pattern=whole(r"[0-9]{1,3}\.[0-9]{1,3}(?:\.[0-9]{1,3})?"),
        title="a version of transformers, such as 4.45 or 4.45.2",
    ),
]

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_LORA = {
    "r": r"[1-9][0-9]{0,3}",
    "target": r"[A-Za-z0-9_.-]+(?:\+[A-Za-z0-9_.-]+)*",
    "alpha": r"[0-9]{1,9}(?:\.[0-9]{1,9})?",
    "dropout": r"0(?:\.[0-9]{1,9})?",
}
_PART = rf" *(?:{'|'.join(f'{key}={form}' for key, form in _LORA.items())}) *"
_RANK = rf" *{_LORA['r']} *"
_TWICE = rf"(?!.*(?:^|[, ])({'|'.join(_LORA)})=.*[, ]\1=|{_RANK},.*r=)"
NO_LORA = "none"
"""The value for no adapters where the default has some."""
USUAL_LORA = "r=16,target=all-linear"
Lora = Annotated[
    str,
    Meta(
        pattern=rf"{_TWICE}{whole(f'(?:{_RANK}|{_PART})(?:,{_PART})*|{NO_LORA}')}",
        title="LoRA settings, such as 16 or r=16,target=all-linear (r: a rank from 1 to 9999; "
        "target: all-linear, or modules' names joined by +; alpha: a number; dropout: from 0 to "
        "below 1), or none",
    ),
]
_SIZE = " *[1-9][0-9]{0,11} *"
Input = Annotated[
    str,
    Meta(
        pattern=whole(
            rf" *{_NAME} *= *(?:{'|'.join(DTYPE_BYTES)}) *"
            rf"\[(?:{_SIZE}(?:,{_SIZE})*)?,? *\] *"
        ),
        title="name=dtype[shape], such as x=float32[8,3,224,224]",
    ),
]


class Adapter(msgspec.Struct, frozen=True, kw_only=True):
    """Low-rank adapters, as ``peft.LoraConfig`` takes them (peft 0.17)."""

    r: int = 16
    target: str | tuple[str, ...] = "all-linear"
    alpha: float
    dropout: float = 0.0


def adapter(text: str) -> Adapter:
    """Parse a text of ``Plan.lora``, such as ``r=16,target=all-linear``.

    Raises:
        UsageError: the text has another form.
    """
    written = re.sub(r"^ *(?=[0-9])", "r=", check_value("lora", Lora, text))
    parts = dict(part.strip().split("=") for part in written.split(","))
    rank, target = int(parts.get("r", 16)), parts.get("target", "all-linear")
    return Adapter(
        r=rank,
        target=target if target == "all-linear" else tuple(target.split("+")),
        alpha=float(parts.get("alpha", 2 * rank)),
        dropout=float(parts.get("dropout", 0)),
    )


def parse_input(text: str) -> tuple[str, str, tuple[int, ...]]:
    """Parse a text of ``Plan.inputs`` into name, dtype and shape.

    Raises:
        UsageError: the text has another form.
    """
    written: str = check_value("input", Input, text)
    name, dtype, sizes, _ = re.split(r"[=\[\]]", written.replace(" ", ""))
    return name, dtype, tuple(int(size) for size in sizes.split(",") if size)
