"""Checks that numbers in a config.json go together, which closed forms would not notice."""

from collections.abc import Mapping
from typing import Any

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")
_CHOSEN = ("num_experts_per_tok", "num_experts_per_token", "moe_topk")


def refusal(config: Mapping[str, Any], name: str) -> str | None:
    """Return why numbers in a config contradict each other (heads, experts), or None."""
    for part in (config, config.get("text_config")):
        if not isinstance(part, Mapping):
            continue
        heads, shared = (
            _find_number(part, [key]) for key in ("num_attention_heads", "num_key_value_heads")
        )
        if heads and shared and heads % shared:
            return (
                f"{name} has {heads} attention heads and {shared} key-value heads, which must "
                "divide them: correct num_key_value_heads in its config.json."
            )
        experts, chosen = _find_number(part, _EXPERTS), _find_number(part, _CHOSEN)
        if experts and chosen and chosen > experts:
            return (
                f"{name} sends a token to {chosen} of {experts} experts: correct its config.json."
            )
    return None


def _find_number(config: Mapping[str, Any], keys: list[str] | tuple[str, ...]) -> int | None:
    """Return the first whole number under one of these keys, or None."""
    found = (config[key] for key in keys if type(config.get(key)) is int)
    return next(found, None)
