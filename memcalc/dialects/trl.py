"""The YAML of ``trl sft --config``.

Source: trl 1.10 and 1.16, ``scripts/sft.py``, ``trainer/sft_config.py``, ``trainer/base_config.py``
and ``trainer/model_config.py``; where trl is installed, its own defaults are read.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.dialects import trainer
from memcalc.dialects.format import declared_fields, find_file, read_format
from memcalc.dialects.recipe import Keys, Recipe, make_verb_error
from memcalc.dialects.weights import write_lora, write_quant
from memcalc.records.names import FLASH_ATTN
from memcalc.records.plan import Plan

NAME = "TRL"
_PIECE = 256
"""Tokens that 1.10 computes the loss of at once (``_CHUNKED_LM_HEAD_CHUNK_SIZE``)."""
_SCRIPTS = ("do_train", "block_size", "task_name", "train_file", "max_seq_length")
"""Keys of transformers' example scripts, which name a model and a data set too."""
_SHARED = ("dataset_name", "torch_dtype", "max_length")
"""Marks that transformers' example scripts have too."""
_OTHERS = {
    "grpo": ("num_generations", "max_completion_length", "reward_funcs"),
    "kto": ("desirable_weight", "undesirable_weight"),
    "dpo": ("max_prompt_length", "beta", "precompute_ref_log_probs", "ref_model_name_or_path"),
    "reward": ("center_rewards_coefficient",),
}
"""Keys of TRL's other trainers, by their commands."""
_HALVES = {"bfloat16": "bf16", "float16": "fp16", "float32": ""}


def is_one(data: Mapping[str, Any]) -> bool:
    """Return True if a table has the keys of TRL's SFT command."""
    if "model_name_or_path" not in data:
        return False
    marks = [key for key in read_format("trl").marks.split() if key in data]
    own = [key for key in marks if key not in _SHARED]
    return bool(own or (marks and not any(key in data for key in _SCRIPTS)))


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read the YAML of ``trl sft`` as settings of a plan.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    form = read_format("trl")
    _check_trainer(data, file)
    if data.get("use_flash_attention_2") is True:
        data = {"attn_implementation": FLASH_ATTN, **data}
    keys = Keys(data, file, NAME, form)
    own = {
        key: one
        for place, classes in form.classes.items()
        if place.startswith("trl/")
        for key, one in declared_fields(place, *classes.split()).items()
        if key in form.defaults and one not in (None, ...)
    }
    if "max_length" in data and data["max_length"] is None:
        # Nothing is cut.
        own["max_length"] = None
    keys = keys.view({"bf16": False, **data} if keys.flag("fp16") else data, own)
    found = trainer.read_arguments(keys, given)
    found["precision"] = _read_precision(keys)
    if "quant" in found:
        keys.unread.append("that adapters are in bf16, half of what is counted of them")
        dtype = keys.text("dtype", "torch_dtype") or "float32"
        # Embeddings and norms are loaded in the type that layers in 4 bit compute in.
        found["kbit_prepare"] = dtype == "float32"
        if found["quant"] != "int8" and dtype in _HALVES:
            found["bnb_4bit_compute_dtype"] = dtype
    if found.get("padding") is False and found.get("attention") != FLASH_ATTN:
        keys.unread.append("the mask of packed samples: batch x length squared, kept by each layer")
    _check_loss(keys)
    return keys.recipe(found)


def _check_trainer(data: Mapping[str, Any], file: str) -> None:
    """Raise UsageError for a recipe of a TRL trainer that is not for supervised fine-tuning."""
    named = next((verb for verb, own in _OTHERS.items() if any(key in data for key in own)), "sft")
    verb = data.get("trl_command", named)
    if verb != "sft":
        raise make_verb_error(file, f"trl {verb} --config {file}", f"trl {verb}")


def _read_precision(keys: Keys) -> str:
    dtype = keys.text("dtype", "torch_dtype") or "float32"
    half = next((name for name in ("bf16", "fp16") if keys.flag(name)), "")
    if dtype == "auto":
        keys.unread.append("a checkpoint in another type than bf16 (dtype auto)")
        dtype = "bfloat16"
    if dtype not in _HALVES:
        raise keys.error("dtype", "is no type of weights", "correct it")
    weights = _HALVES[dtype]
    if not weights:
        return f"amp-{half}" if half else "tf32" if keys.flag("tf32") else "fp32"
    if weights == half == "fp16":
        keys.unread.append(trainer.OVER_FP16)
        return weights
    if half and weights != half:
        raise keys.error("dtype", f"computes in {half} over weights in {weights}",
                         "load the model in bfloat16, and compute in bf16")  # fmt: skip
    return "bf16+amp" if half else weights


def _check_loss(keys: Keys) -> None:
    kind = keys.text("loss_type")
    if kind not in (None, "nll", "chunked_nll"):
        raise keys.error("loss_type", "is another loss")
    if not keys.flag("use_liger_kernel") and _splits_loss(kind):
        keys.loss_piece = _PIECE
        keys.unread.append(
            "that TRL's own loss sums the head's gradient in fp32, in other pieces than 256 tokens"
        )


def _splits_loss(kind: str | None) -> bool:
    """Return True if the installed TRL (else the newest) computes the loss in chunks."""
    old = declared_fields("trl/trainer/sft_config.py", "SFTConfig").get("loss_type") == "nll"
    chunked = find_file("trl/kernels/chunked_logprob.py") is not None
    return kind == "chunked_nll" or not old or chunked


def write(plan: Plan) -> dict[str, Any]:
    """Return a plan as TRL's keys, without settings it cannot express."""
    form = read_format("trl")
    half = {"bf16": "bfloat16", "bf16+amp": "bfloat16", "fp16": "float16"}
    return {
        "model_name_or_path": plan.model,
        **trainer.write(plan),
        "gradient_checkpointing": plan.checkpointing,
        "dtype": half.get(plan.precision, "float32"),
        "bf16": plan.precision in ("amp-bf16", "bf16+amp"),
        **({"max_length": plan.seq} if plan.seq else {}),
        **({"attn_implementation": plan.attention} if plan.attention != "auto" else {}),
        **write_quant(form, plan),
        **write_lora(form, plan),
    }
