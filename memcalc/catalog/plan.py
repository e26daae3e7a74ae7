"""From what a user typed or wrote in a file to a Plan, or to a sentence that says what is wrong."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memcalc.errors import UsageError, unknown
from memcalc.records.plan import Plan, Scalar

PRECISIONS = ("fp32", "tf32", "amp-fp16", "amp-bf16", "bf16", "fp16")
ATTENTIONS = ("auto", "sdpa", "eager", "flash", "efficient", "cudnn", "math")
LOOPS = ("plain", "trainer")
TARGETS = ("cuda", "cpu")
_CHOICES = {
    "precision": PRECISIONS,
    "attention": ATTENTIONS,
    "loop": LOOPS,
    "target": TARGETS,
}
_LIMITS = {
    "batch": 1 << 20,
    "seq": 1 << 24,
    "grad_accum": 1 << 16,
    "eval": 1 << 16,
    "loss_chunks": 1 << 16,
}
_FIELDS = Plan.__annotations__


def make(settings: Mapping[str, Any]) -> Plan:
    """Check settings and make a plan of them; keys are those of ``Plan``.

    Raises:
        UsageError: an unknown key, a value of the wrong type or out of range, a missing model.
    """
    checked: dict[str, Any] = {}
    for key, value in settings.items():
        name = key.replace("-", "_")
        if name not in _FIELDS:
            raise unknown("setting", key, _FIELDS, hint="see memcalc estimate --help.")
        if value is not None:
            checked[name] = _check(name, value)
    if "model" not in checked:
        raise UsageError("Which model? Name one: memcalc list models shows those that are bundled.")
    plan = Plan(**checked)
    _agree(plan)
    return plan


def _agree(plan: Plan) -> None:
    """Refuse settings that PyTorch itself cannot run together."""
    if plan.checkpoint_every > 1 and not plan.checkpointing:
        raise UsageError("checkpoint_every needs checkpointing: add --checkpointing.")
    if not plan.optim_in_backward:
        return
    against = {
        "grad_accum above 1": plan.grad_accum > 1,
        "max_grad_norm": plan.max_grad_norm is not None,
        "precision amp-fp16": plan.precision == "amp-fp16",
    }
    for name, given in against.items():
        if given:
            raise UsageError(
                f"optim_in_backward does not go with {name}: gradients are used and freed one by "
                "one, before all of them are known."
            )


def read(path: Path) -> dict[str, Any]:
    """Read a TOML plan file.

    Raises:
        UsageError: the file cannot be read or is not TOML.
    """
    try:
        with path.open("rb") as file:
            return tomllib.load(file)
    except OSError as error:
        raise UsageError(f"Cannot read {path}: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}.") from None


def parse_args(pairs: Sequence[str]) -> tuple[tuple[str, Scalar], ...]:
    """Read ``key=value`` pairs of optimizer arguments; values are TOML scalars or bare words."""
    parsed: dict[str, Scalar] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key.strip():
            raise UsageError(f"Optimizer argument {pair!r} is not understood: write key=value.")
        parsed[key.strip()] = _scalar(text.strip())
    return tuple(parsed.items())


def _scalar(text: str) -> Scalar:
    lowered = text.lower()
    if lowered in ("true", "false"):
        return lowered == "true"
    if lowered in ("none", "null"):
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _check(name: str, value: Any) -> Any:
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            hint = f"choose one of {', '.join(_CHOICES[name])}."
            raise unknown(name, str(value), _CHOICES[name], hint=hint)
        return value
    kind = _FIELDS[name]
    if name == "optim_args":
        items = value.items() if isinstance(value, Mapping) else value
        return tuple((str(key), item) for key, item in items)
    if kind.startswith("tuple"):
        return (value,) if isinstance(value, str) else tuple(str(item) for item in value)
    if kind.startswith("bool"):
        return _typed(name, value, bool, "true or false")
    if kind.startswith("int"):
        return _count(name, value)
    if kind.startswith("float"):
        return _positive(name, value)
    return _typed(name, value, str, "a text")


def _typed(name: str, value: Any, kind: type, wanted: str) -> Any:
    if not isinstance(value, kind):
        raise UsageError(f"{name} = {value!r} is not {wanted}.")
    return value


def _count(name: str, value: Any) -> int:
    limit = _LIMITS.get(name, 1 << 31)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= limit:
        raise UsageError(f"{name} = {value!r} is not a whole number from 1 to {limit:,}.")
    return value


def _positive(name: str, value: Any) -> float:
    number = not isinstance(value, bool) and isinstance(value, int | float)
    if not number or not 0 < value < float("inf"):
        raise UsageError(f"{name} = {value!r} is not a positive number.")
    return float(value)
