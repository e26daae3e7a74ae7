"""Options written as one string, such as ``r=16,target=all-linear``.

Patterns are searched for by Python and by readers of JSON Schema (ECMA 262) alike.
"""

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from memcalc.records.model import DTYPE_BYTES
from memcalc.records.values import checked


def whole(pattern: str) -> str:
    """A pattern that the whole text must match; Python's ``$`` alone allows a line break."""
    return rf"^(?:{pattern})$(?!\n)"


def about(
    group: str, words: str, *, otherwise: str = "", option: str | None = "", typed: str = ""
) -> Meta:
    """What a person is told of a field.

    Args:
        group: the heading that it stands under in help.
        words: what it is, in a sentence.
        otherwise: what holds where the setting is left out, if its default does not say.
        option: its name on the command line, if it is not the field's own; ``None``: a verb of its
            own takes it.
        typed: a sentence on how it is typed there.
    """
    extra = {"group": group, "otherwise": otherwise, "option": option, "typed": typed}
    return Meta(description=words, extra=extra)


Text = Annotated[str, Meta(pattern=r"\S", title="a text that is not empty")]
Version = Annotated[
    str,
    Meta(
        pattern=whole(r"[0-9]+\.[0-9]+[0-9A-Za-z.+]*"), title="a version of PyTorch, such as 2.13"
    ),
]

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
_TWICE = rf"(?!.*(?:^|[, ])({'|'.join(_LORA)})=.*[, ]\1=)"
NO_LORA = "none"
"""No adapters where there would be some."""
USUAL_LORA = "r=16,target=all-linear"
Lora = Annotated[
    str,
    Meta(
        pattern=rf"{_TWICE}{whole(f'{_PART}(?:,{_PART})*|{NO_LORA}')}",
        title="LoRA settings, such as r=16,target=all-linear (r: a rank from 1 to 9999; target: "
        "all-linear, or modules' names joined by +; alpha: a number; dropout: from 0 to below 1), "
        "or none",
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
    """What a text of ``Plan.lora`` says; alpha is twice the rank unless it is given.

    Raises:
        UsageError: the text has another form.
    """
    parts = dict(part.strip().split("=") for part in checked("lora", Lora, text).split(","))
    rank, target = int(parts.get("r", 16)), parts.get("target", "all-linear")
    return Adapter(
        r=rank,
        target=target if target == "all-linear" else tuple(target.split("+")),
        alpha=float(parts.get("alpha", 2 * rank)),
        dropout=float(parts.get("dropout", 0)),
    )


def input_of(text: str) -> tuple[str, str, tuple[int, ...]]:
    """Name, dtype and shape of a text of ``Plan.inputs``.

    Raises:
        UsageError: the text has another form.
    """
    written: str = checked("input", Input, text)
    name, dtype, sizes, _ = re.split(r"[=\[\]]", written.replace(" ", ""))
    return name, dtype, tuple(int(size) for size in sizes.split(",") if size)
