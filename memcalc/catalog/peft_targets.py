"""Reads from the installed peft which modules it adapts by default."""

import ast
import functools

from memcalc.dialects.format import parse_module

_TABLE = "TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING"


def default_targets(model_type: str | None) -> tuple[str, ...] | None:
    """Return the module names that peft adapts by default in a model type, or None."""
    found = _read_table().get(model_type or "")
    return tuple(found) if found else None


@functools.cache
def _read_table() -> dict[str, list[str]]:
    """Parse peft's table of default target modules without importing peft."""
    tree = parse_module("peft/utils/constants.py")
    for node in tree.body if tree is not None else ():
        names = node.targets if isinstance(node, ast.Assign) else []
        if any(isinstance(one, ast.Name) and one.id == _TABLE for one in names):
            return dict(ast.literal_eval(node.value))  # type: ignore[attr-defined]
    return {}
