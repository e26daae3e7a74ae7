"""The KV cache of a model's layers, read from its config, for serving engines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from memcalc.errors import UsageError
from memcalc.files.extras import lacking

if TYPE_CHECKING:
    import torch

NAMES = "past_key_values", "cache"
"""Names of the cache in arguments and outputs of models; the second since transformers 5.24."""
_WINDOWED = "sliding_attention"
_WHOLE = "full_attention"
_INDEXED = ("index_head_dim", "index_topk")
"""Attributes of models that keep an index of their tokens in addition to keys and values."""


def windows(model: torch.nn.Module) -> tuple[int | None, ...]:
    """Return each decoder layer's sliding attention window in tokens, None for full attention.

    Raises:
        UsageError: a layer keeps its tokens in another way.
    """
    config = _decoder_config(model)
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    if kinds is None:
        return (window,) * int(config.num_hidden_layers)
    other = next((kind for kind in kinds if kind not in (_WINDOWED, _WHOLE)), None)
    if other is not None:
        raise UsageError(
            f"{type(model).__name__} has layers of {other.replace('_', ' ')}: how engines keep "
            f"them is not supported yet. Leave --engine out."
        )
    return tuple(window if kind == _WINDOWED else None for kind in kinds)


def latent(model: torch.nn.Module) -> int | None:
    """Return the elements of a layer's MLA latent per token, or None for a model without MLA.

    transformers keeps the keys and values themselves; engines keep the latent and the part of the
    key that holds positions.

    Raises:
        UsageError: the model keeps more than that.
    """
    config = _decoder_config(model)
    rank = getattr(config, "kv_lora_rank", None)
    if rank is None:
        return None
    if any(getattr(config, name, None) for name in _INDEXED):
        raise UsageError(
            f"{type(model).__name__} keeps an index of its tokens beside their latents: how "
            f"engines keep it is not supported yet. Leave --engine out."
        )
    return int(rank) + int(config.qk_rope_head_dim)


def _decoder_config(model: torch.nn.Module) -> Any:
    config: Any = model.config
    if config.is_encoder_decoder:
        raise UsageError(
            f"{type(model).__name__} has an encoder, and engines are supported for decoders only: "
            "leave --engine out."
        )
    return config.get_text_config(decoder=True)


_PACKAGES = {
    "quantized": ("optimum.quanto", "optimum-quanto"),
    "quantized-hqq": ("hqq", "hqq"),
}
"""Module and package by ``Plan.cache``, for caches that PyTorch alone does not provide."""


def check(cache: str) -> None:
    """Raise UsageError if the package that a KV cache type needs is not installed.

    Raises:
        UsageError: it is not installed.
    """
    module, package = _PACKAGES.get(cache, ("", ""))
    missing = lacking(f"The cache {cache} needs", package, module=module) if module else None
    if missing is not None:
        raise UsageError(f"{missing}, or name another --cache; quantized-fp8 needs nothing.")
