"""Checkpoints that are quantised already, and why some cannot be answered as they are.

Trainable or not is what transformers 5.23 says (``HfQuantizer.is_trainable`` of each method).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXTENSION = "its products are CUDA extensions of gptqmodel, and nothing here runs in their place"
_NOT_TRAINED = "transformers does not train it as it is"
_REASONS = {
    "gptq": _EXTENSION,
    "awq": _EXTENSION,
    "mxfp4": f"{_NOT_TRAINED}, but turns it into bf16 first (Mxfp4Config(dequantize=True))",
    "fp8": "its products are Triton kernels of the kernels hub, which are not simulated",
    "fbgemm_fp8": _NOT_TRAINED,
    "compressed-tensors": "compressed-tensors is not simulated",
    "torchao": "only memcalc simulate runs torchao, in a script of your own",
}
_AS_BF16 = (
    "for a run on turned-back weights, take quantization_config out of a copy of its config.json"
)


def scheme_of(settings: Mapping[str, Any]) -> str | None:
    """The value of ``Plan.quant`` that a checkpoint of bitsandbytes was made with, or ``None``."""
    if settings.get("load_in_8bit"):
        return "int8"
    kind = settings.get("bnb_4bit_quant_type", "fp4")
    if not settings.get("load_in_4bit") or kind not in ("fp4", "nf4"):
        return None
    twice = bool(settings.get("bnb_4bit_use_double_quant"))
    return {("nf4", False): "nf4", ("nf4", True): "nf4-dq", ("fp4", False): "fp4"}.get(
        (kind, twice)
    )


def refusal(config: Mapping[str, Any], name: str, quant: str | None) -> str | None:
    """Why a model cannot be answered as its checkpoint is; ``None``: it is not quantised, or can.

    Args:
        config: of the model.
        name: of the model.
        quant: how the plan quantises it.
    """
    settings = config.get("quantization_config")
    if not isinstance(settings, Mapping):
        return None
    method = str(settings.get("quant_method") or "bitsandbytes")
    known = scheme_of(settings)
    if known is not None and known == quant:
        return None
    if known is not None:
        return f"The checkpoint of {name} is quantised already: give --quant {known}."
    reason = _REASONS.get(method, f"memcalc does not run {method}")
    return f"The checkpoint of {name} is in {method}, and {reason}; {_AS_BF16}."
