"""The YAML of ``trl sft --config``.

Source: trl 1.10 and 1.16, ``scripts/sft.py``, ``trainer/sft_config.py``, ``trainer/base_config.py``
and ``trainer/model_config.py``; where trl is installed, its own defaults are read.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.dialects import trainer
from memcalc.dialects.llamafactory import of_4_bit
from memcalc.dialects.recipe import Keys, Recipe, by_key, holds, lora, model, schema
from memcalc.records.names import TRAINER_OPTIM
from memcalc.records.plan import Plan
from memcalc.records.values import adapter

NAME = "TRL"
DEFAULTS = {
    "per_device_train_batch_size": 8,
    "max_length": 1024,
    "gradient_checkpointing": True,
    "bf16": True,
    "dtype": "float32",
    "optim": TRAINER_OPTIM,
}
_PIECE = 256
"""Tokens that 1.10 computes the loss of at once (``_CHUNKED_LM_HEAD_CHUNK_SIZE``)."""
_OF_LORA = {"lora_r": 16, "lora_dropout": 0.05, "lora_target_modules": "default"}
_CLASSES = {
    "trainer/base_config.py": "_BaseConfig",
    "trainer/sft_config.py": "SFTConfig",
    "trainer/model_config.py": "ModelConfig",
    "scripts/utils.py": "ScriptArguments",
}
_MARKS = """
    use_peft lora_r lora_target_modules dataset_text_field packing max_length attn_implementation
    dtype torch_dtype load_in_4bit load_in_8bit assistant_only_loss completion_only_loss
    dataset_train_split padding_free loss_type chat_template_path
""".split()
_SCRIPTS = ("do_train", "block_size", "max_seq_length", "task_name", "train_file")
"""Keys of transformers' example scripts, which name a model and a data set too."""
_HALVES = {"bfloat16": "bf16", "float16": "fp16", "float32": ""}
NO_EFFECT = """
    dataset_* datasets streaming test_split_size ignore_bias_buffers model_revision
    trust_remote_code chat_template_path eos_token pad_token shuffle_dataset truncation_mode
    eval_packing completion_only_loss assistant_only_loss packing_strategy lora_alpha
    lora_task_type use_rslora router_aux_loss_coef env pad_to_multiple_of
"""
REFUSED = by_key(
    """
    DoRA: use_dora
    adapters of parameters: lora_target_parameters
    modules that are trained as a whole: lora_modules_to_save
    another storage: bnb_4bit_quant_storage
    activations in host memory: activation_offloading
    changes to how the model is loaded: model_init_kwargs
    training on rewards: num_generations max_completion_length reward_*
    training on preferences: max_prompt_length beta precompute_ref_log_probs
    a serving engine beside the training: use_vllm vllm_*
    a second model: ref_model* sync_ref_model teacher_model*
    another head: num_labels
    """
)


def is_one(data: Mapping[str, Any]) -> bool:
    """Tell whether a file is one of TRL's commands, by its keys."""
    if "model_name_or_path" not in data or any(key in data for key in _SCRIPTS):
        return False
    return any(key in data for key in (*_MARKS, "dataset_name", "datasets"))


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read a recipe of supervised fine-tuning.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    known = [one for path, name in _CLASSES.items()
             if (one := schema("trl", path, name)) is not None]  # fmt: skip
    declared = {key: one.fields[key] for one in known for key in DEFAULTS.keys() & one.fields.keys()
                if one.fields[key] not in (None, ...)}  # fmt: skip
    keys = Keys(
        data, file, NAME, defaults={**DEFAULTS, **declared}, instead=f"trl sft --config {file}"
    )
    keys.refuse(REFUSED)
    if keys.flag("fp16"):
        keys = keys.over({"bf16": False, **data})
    found = trainer.arguments(keys, given)
    quant = _quant(keys)
    if quant is not None:
        keys.unread.append("that adapters are in bf16, half of what is counted of them")
    found |= {
        "model": model(keys, "model_name_or_path"),
        "task": "causal-lm",
        "seq": keys.count("max_length", "max_seq_length"),
        "precision": _precision(keys),
        "attention": _attention(keys),
        "quant": quant,
        "kbit_prepare": None if quant is None else False,
        "lora": _lora(keys),
        "padding": False if keys.flag("packing") | keys.flag("padding_free") else None,
    }
    _check_loss(keys)
    return trainer.finish(keys, NAME, found, NO_EFFECT, known)


def _precision(keys: Keys) -> str:
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


def _attention(keys: Keys) -> str | None:
    named = keys.text("attn_implementation")
    if named not in (None, "sdpa", "eager", "flash_attention_2"):
        raise keys.error("attn_implementation", "is an attention that memcalc does not run")
    return named


def _check_loss(keys: Keys) -> None:
    kind = keys.text("loss_type")
    if kind not in (None, "nll", "chunked_nll"):
        raise keys.error("loss_type", "is another loss")
    if not keys.flag("use_liger_kernel") and _in_pieces(kind):
        keys.loss_piece = _PIECE
        keys.unread.append("how TRL's own loss differs from one in pieces of 256 tokens")


def _in_pieces(kind: str | None) -> bool:
    """Tell whether the installed release, or else the newest, never holds all logits."""
    declared = schema("trl", "trainer/sft_config.py", "SFTConfig")
    old = declared is not None and declared.fields.get("loss_type") == "nll"
    return kind == "chunked_nll" or not old or holds("trl", "kernels/chunked_logprob.py")


def _quant(keys: Keys) -> str | None:
    four, eight = keys.flag("load_in_4bit"), keys.flag("load_in_8bit")
    double = keys.flag("use_bnb_nested_quant")
    kind = str(keys.get("bnb_4bit_quant_type") or "nf4")
    if four:
        return of_4_bit(keys, "bnb_4bit_quant_type", kind, double=double)
    return "int8" if eight else None


def _lora(keys: Keys) -> str | None:
    told = keys.over(keys.data, _OF_LORA if keys.flag("use_peft") else {})
    rank, names = told.count("lora_r"), told.texts("lora_target_modules")
    dropout = told.get("lora_dropout")
    if not keys.flag("use_peft"):
        return None
    return lora(keys, rank, names if names != ["all-linear"] else "all-linear", dropout)


def write(plan: Plan) -> dict[str, Any]:
    """Write a plan; what TRL has no word for is left out."""
    trained = adapter(plan.adapters) if plan.adapters is not None else None
    half = {"bf16": "bfloat16", "bf16+amp": "bfloat16", "fp16": "float16"}
    arguments = trainer.write(plan)
    return {
        "model_name_or_path": plan.model,
        **arguments,
        "gradient_checkpointing": plan.checkpointing,
        "dtype": half.get(plan.precision, "float32"),
        "bf16": plan.precision in ("amp-bf16", "bf16+amp"),
        **({"max_length": plan.seq} if plan.seq else {}),
        **({"attn_implementation": plan.attention} if plan.attention != "auto" else {}),
        **_bits(plan),
        **({"use_peft": True, "lora_r": trained.r, "lora_alpha": int(trained.alpha),
            "lora_dropout": trained.dropout,
            "lora_target_modules": "all-linear" if isinstance(trained.target, str)
            else list(trained.target)} if trained else {}),
    }  # fmt: skip


def _bits(plan: Plan) -> dict[str, Any]:
    if plan.scheme == "int8":
        return {"load_in_8bit": True}
    if plan.scheme not in ("nf4", "nf4-dq", "fp4"):
        return {}
    kind, _, double = plan.scheme.partition("-")
    return {
        "load_in_4bit": True,
        **({} if kind == "nf4" else {"bnb_4bit_quant_type": kind}),
        **({"use_bnb_nested_quant": True} if double else {}),
    }
