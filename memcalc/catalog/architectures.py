"""Architectures of transformers: the class of each task, and the check of a config.json."""

import functools
import math
from typing import Any

from memcalc.errors import UsageError, unknown
from memcalc.files import shipped
from memcalc.files.artifact import decode


@functools.cache
def table() -> dict[str, Any]:
    """Return class names by model type: ``{type: {"config": ..., "heads": {task: ...}}}``."""
    return shipped.read("architectures.json", lambda data: decode(dict[str, Any], data["types"]))


def heads(model_type: str) -> dict[str, str]:
    """Return the model class of each task for a model type; empty if unknown."""
    found: dict[str, str] = table().get(model_type, {}).get("heads", {})
    return found


_LAYERS = """
    num_hidden_layers num_layers n_layer n_layers num_decoder_layers encoder_layers decoder_layers
    num_encoder_layers num_hidden_groups inner_group_num
""".split()
_SIZES = """
    hidden_size d_model n_embd dim vocab_size intermediate_size d_ff ffn_dim hidden_dim n_inner
    encoder_ffn_dim decoder_ffn_dim max_position_embeddings n_positions num_attention_heads
    num_heads n_head n_heads num_key_value_heads head_dim d_kv embedding_size image_size
    patch_size num_channels num_experts num_local_experts n_routed_experts moe_intermediate_size
    num_mel_bins encoder_attention_heads decoder_attention_heads type_vocab_size
""".split()
MOST_LAYERS = 2_000
"""An order of magnitude above the deepest models published; each is built, so this bounds time."""
MOST_LABELS = 1 << 18
"""Above any classifier published; transformers names each in a dict."""
LARGEST_SIZE = 1 << 28
"""Above any vocabulary or width published; sizes multiply, so this bounds time and memory."""
_NESTED = ("text_config", "vision_config", "audio_config", "encoder", "decoder")
_MAY_BE_ZERO = {"type_vocab_size", "num_key_value_heads", "n_inner"}


def validate(config: Any, name: str) -> dict[str, Any]:
    """Check a config.json's model type and sizes, and return it.

    Raises:
        UsageError: it is no object, names no known architecture, or a size is not a positive
            whole number within bounds.
    """
    if not isinstance(config, dict):
        raise UsageError(f"The config of {name} is not a JSON object.")
    if "memcalc" in config and "schema" in config:
        raise UsageError(f"{name} is an answer of memcalc, and no model: memcalc show shows it.")
    model_type = config.get("model_type")
    if not isinstance(model_type, str):
        raise UsageError(f"The config of {name} has no model_type, so nothing can be built of it.")
    if "auto_map" not in config and model_type not in table():
        hint = "update transformers and memcalc, or name a callable as package.module:callable."
        raise unknown("model type", model_type, table(), hint=hint)
    _check_sizes(config, name)
    return config


def _check_sizes(config: dict[str, Any], name: str) -> None:
    """Raise UsageError for a size in a config that is no number within bounds."""
    for key in _LAYERS:
        _check_size(config, key, MOST_LAYERS, name)
    _check_size(config, "num_labels", MOST_LABELS, name)
    for key in _SIZES:
        _check_size(config, key, LARGEST_SIZE, name)
    for key, value in config.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise UsageError(f"The config of {name} has {key} = {value}, which is not a number.")
    for key in _NESTED:
        if isinstance(config.get(key), dict):
            _check_sizes(config[key], f"{name} ({key})")


def _check_size(config: dict[str, Any], key: str, most: int, name: str) -> None:
    """Raise UsageError unless a config value is a whole number up to ``most``."""
    value = config.get(key)
    if value is None or (
        isinstance(value, list | tuple) and all(_is_whole_number(item) for item in value)
    ):
        return
    if not _is_whole_number(value) or value > most or value < (0 if key in _MAY_BE_ZERO else 1):
        raise UsageError(
            f"The config of {name} has {key} = {str(value)[:40]!r}: it must be a whole number "
            f"from 1 to {most:,}."
        )


def _is_whole_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
