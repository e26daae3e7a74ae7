"""Reads and writes adapters and the quantization of a base, by the keys of a format."""

from typing import Any

from memcalc.dialects.format import Format
from memcalc.dialects.recipe import Keys
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.values import adapter


def lora(keys: Keys, rank: int | None, targets: Any, dropout: Any) -> str:
    """Return LoRA settings as a text of ``Plan.lora``: ``r=16,target=q_proj+v_proj``.

    Raises:
        UsageError: a target is a pattern, or the dropout is no share.
    """
    names = [targets] if isinstance(targets, str) else list(targets)
    for name in names:
        if not isinstance(name, str) or not name.translate(str.maketrans("", "", "_.-")).isalnum():
            shown = str(names[0])[:40]
            raise UsageError(
                f"{keys.file}: the LoRA target {shown!r} is a pattern: list modules by their names."
            )
    text = f"r={rank or 8},target={'+'.join(names)}"
    try:
        share = float(dropout or 0)
    except (TypeError, ValueError):
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"{keys.file}: a LoRA dropout of {dropout!r} is no share from 0 to 1.")
    return f"{text},dropout={share:.9f}".rstrip("0") if share else text


def read_lora(keys: Keys) -> str | None:
    """Return a recipe's adapters as a text of ``Plan.lora``, or None without adapters."""
    form = keys.form.lora
    assert form is not None
    switch = keys.flag(form.switch) if isinstance(form.on, bool) else keys.get(form.switch)
    told = keys.view(keys.data, form.defaults if switch == form.on else {})
    rank, names = told.count(form.rank), told.texts(form.targets)
    dropout = told.get(form.dropout)
    if switch != form.on:
        return None
    return lora(keys, rank, "all-linear" if names == [form.every] else names, dropout)


def write_lora(form: Format, plan: Plan) -> dict[str, Any]:
    """Return a plan's adapters by a format's keys."""
    own = form.lora
    assert own is not None
    if plan.adapters is None:
        return {} if own.off is None else {own.switch: own.off}
    told = adapter(plan.adapters)
    every = isinstance(told.target, str)
    targets = own.every if every else list(told.target)
    found: dict[str, Any] = {own.switch: own.on, own.rank: told.r, own.targets: targets}
    if own.alpha:
        found[own.alpha] = int(told.alpha)
    if told.dropout or own.dropout in own.defaults:
        found[own.dropout] = told.dropout
    return found


def read_quant(keys: Keys) -> str | None:
    """Return a recipe's bitsandbytes quantization as ``Plan.quant``, or None.

    Raises:
        UsageError: another method, or another number of bits.
    """
    form = keys.form.quant
    assert form is not None
    if form.four:
        four, eight = keys.flag(form.four), keys.flag(form.eight)
        bits = 4 if four else 8 if eight else None
    else:
        method, bits = keys.text(form.method), keys.count(*form.bits.split())
        if method not in (None, *form.methods):
            raise keys.error(form.method, "is a quantization that memcalc does not run")
        if bits not in (4, 8) and (bits is not None or method is not None):
            raise keys.error(form.bits.split()[0], "is neither 4 nor 8", "correct it")
    told = {form.double: form.double_default, form.kind: "nf4"}
    in_four = keys.view(keys.data, told if bits == 4 and form.shown else {})
    double = in_four.flag(form.double, default=form.double_default)
    kind = str(in_four.get(form.kind) or "nf4")
    if bits != 4:
        return "int8" if bits == 8 else None
    if kind not in ("nf4", "fp4") or (kind == "fp4" and double):
        raise keys.error(form.kind, "is no quantization that memcalc runs", "write nf4")
    return f"{kind}-dq" if double else kind


def write_quant(form: Format, plan: Plan) -> dict[str, Any]:
    """Return a plan's quantization by a format's keys; empty if it has no such keys."""
    own = form.quant
    assert own is not None
    kind, _, doubled = (plan.scheme or "").partition("-")
    if kind not in ("nf4", "fp4", "int8"):
        return {}
    bits = 8 if kind == "int8" else 4
    found: dict[str, Any] = {own.method: own.methods[0]} if own.method and not own.shown else {}
    found |= (
        {own.bits.split()[0]: bits} if own.bits else {own.eight if bits == 8 else own.four: True}
    )
    if bits == 4:
        found |= {} if bool(doubled) == own.double_default else {own.double: bool(doubled)}
        found |= {} if kind == "nf4" else {own.kind: kind}
    return found
