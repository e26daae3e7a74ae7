"""From axolotl's YAML to a plan.

Source: axolotl 00ce888, ``utils/config/__init__.py``: with ``bf16`` the weights themselves are
loaded in bfloat16, with ``fp16`` in float16; gradients are clipped at 1.0 by the Trainer.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memcalc.budgets.detect import trainer

_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}


def is_one(data: Mapping[str, Any]) -> bool:
    """Does this look like axolotl's?"""
    return "base_model" in data and ("micro_batch_size" in data or "datasets" in data)


_REPLACED = ("rope", "rms_norm", "glu_activation", "fused_linear_cross_entropy")
"""What Liger replaces by default, by the names of axolotl's plugin."""
_QUANT = {"load_in_4bit": "nf4-dq", "load_in_8bit": "int8"}
"""What its switches mean for bitsandbytes (axolotl 002a637, ``loaders/model.py``)."""


def settings(data: Mapping[str, Any], folder: Path) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Translate; returns keys of a plan, and what has no place in one."""
    found: dict[str, Any] = {"loop": "trainer", "task": "causal-lm"}
    for theirs, ours in (
        ("base_model", "model"),
        ("micro_batch_size", "batch"),
        ("gradient_accumulation_steps", "grad_accum"),
        ("sequence_len", "seq"),
        ("max_grad_norm", "max_grad_norm"),
    ):
        if data.get(theirs):
            found[ours] = data[theirs]
    found["optim"] = data.get("optimizer") or trainer.DEFAULT_OPTIM
    if data.get("gradient_checkpointing"):
        found["checkpointing"] = True
    if data.get("bf16") or data.get("bfloat16"):
        # It loads the model in bf16, and tells the Trainer bf16=True unless it is "full".
        found["precision"] = "bf16" if data.get("bf16") == "full" else "bf16+amp"
    elif data.get("fp16") or data.get("float16"):
        found["precision"] = "fp16"
    elif data.get("tf32"):
        found["precision"] = "tf32"
    attention = next((ours for key, ours in _ATTENTION.items() if data.get(key)), None)
    if attention is not None:
        found["attention"] = attention
    if data.get("adapter") in ("lora", "qlora"):
        targets = data.get("lora_target_modules")
        named = isinstance(targets, list) and targets and not data.get("lora_target_linear")
        target = "+".join(map(str, targets or ())) if named else "all-linear"
        found["lora"] = f"r={data.get('lora_r') or 8},target={target}"
    quant = next((ours for key, ours in _QUANT.items() if data.get(key)), None)
    if quant is not None:
        found["quant"] = quant
    kernels = [name for name in _REPLACED if data.get(f"liger_{name}")]
    unlike: tuple[str, ...] = ()
    if len(kernels) == len(_REPLACED):
        found["liger"] = True
    elif kernels:
        unlike = (f"liger_{kernels[0]} is not counted (some of Liger's kernels, and not all)",)
    notes = trainer.unread({key: one for key, one in data.items() if key not in _QUANT})
    more, left = trainer.spread_over(data, folder)
    found, notes = {**more, **found}, (*notes, *unlike, *left)
    if data.get("sample_packing") or data.get("pad_to_sequence_len"):
        found["padding"] = False
    return found, notes
