"""LLaMA-Factory's YAML or JSON, as ``llamafactory-cli train`` takes it.

Source: LLaMA-Factory ff6d4d1, ``hparams``, ``model/adapter.py``, ``model/patcher.py`` and
``model/model_utils``: the model is loaded in the half that it computes in, and what is trained of
it is cast to fp32, unless ``pure_bf16``.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.dialects import trainer
from memcalc.dialects.recipe import Keys, Recipe, by_key, lora, model, schema
from memcalc.errors import UsageError
from memcalc.records.names import TRAINER_OPTIM, ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import adapter

NAME = "LLaMA-Factory"
DEFAULTS = {
    "per_device_train_batch_size": 8,
    "cutoff_len": 2048,
    "finetuning_type": "lora",
    "optim": TRAINER_OPTIM,
}
_OF_LORA = {"lora_rank": 8, "lora_target": "all"}
_OF_BITS = {"double_quantization": True, "quantization_type": "nf4"}
_ATTENTION = {
    "auto": None,
    "disabled": "eager",
    "sdpa": "sdpa",
    "fa2": "flash_attention_2",
    "flash_attention_2": "flash_attention_2",
}
_MARKS = ("finetuning_type", "cutoff_len", "lora_target", "quantization_bit", "template")
_FIRST = ("peft_config", "dist_config", "kernel_config", "model_class", "train_dataset")
"""Keys of its second format, which examples/v1 has."""
NO_EFFECT = """
    stage do_train template dataset eval_dataset dataset_dir media_dir train_on_prompt mask_history
    buffer_size mix_strategy interleave_probs overwrite_cache preprocessing_*
    max_samples ignore_pad_token_for_loss val_size tool_format default_system enable_thinking
    preserve_thinking tokenized_path data_shared_file_system streaming
    lora_alpha loraplus_* use_rslora create_new_adapter adapter_folder adapter_name_or_path
    pissa_convert cache_dir use_fast_tokenizer split_special_tokens init_special_tokens
    model_revision low_cpu_mem_usage offload_folder use_kv_cache infer_* hf_hub_token ms_hub_token
    om_hub_token print_param_status trust_remote_code plot_loss disable_shuffling compute_accuracy
    use_swanlab swanlab_* early_stopping_steps pref_* kto_* simpo_gamma ppo_* dpo_* ld_alpha
    ray_* master_addr master_port enable_torch_profiler profiler_* profile_modules
    max_length do_sample temperature top_p top_k num_beams max_new_tokens repetition_penalty
    length_penalty skip_special_tokens freeze_vision_tower freeze_multi_modal_projector
    freeze_language_model asft_alpha eaft_alpha moe_aux_loss_coef quantization_device_map
    galore_* apollo_* badam_* oft_* module_dropout freeze_trainable_* freeze_extra_modules
    export_* vllm_* sglang_* train_from_scratch video_fps save_only_model pissa_iter
    fp8_* use_v1_kernels image_min_pixels image_do_pan_and_scan crop_to_patches
    video_min_pixels use_audio_in_video audio_sampling_rate video_maxlen
"""
REFUSED = by_key(
    """
    DoRA: use_dora
    PiSSA, which decomposes the weights at the start: pissa_init
    modules that are trained as a whole: additional_target
    LLaMA Pro: use_llama_pro
    GaLore: use_galore
    APOLLO: use_apollo
    BAdam: use_badam
    Adam-mini: use_adam_mini
    its own Muon: use_muon
    Megatron: use_mca use_megatron_bridge megatron_bridge_args tensor_model_parallel_size
        pipeline_model_parallel_size expert_model_parallel_size context_parallel_size
    HyperParallel: use_hyper_parallel hyper_parallel_*
    KTransformers: use_kt kt_*
    Unsloth: use_unsloth
    activations in host memory: use_unsloth_gc
    another loss: use_dft_loss use_asft_loss use_eaft_loss
    a second model: ref_model* reward_model*
    shifted attention: shift_attn
    mixture of depths: mixture_of_depths
    a larger vocabulary: resize_vocab add_tokens add_special_tokens new_special_tokens_config
    norms in fp32: upcast_layernorm
    logits in fp32: upcast_lmhead_output
    changes to the model's config: rope_scaling
    a mask by blocks: block_diag_attn
    images: image_max_pixels
    videos: video_max_pixels
    products in fp8: fp8
    a model in several places: device_map
    another type: compute_dtype
    parallelism over sequences: sequence_parallel*
    """
)


def is_one(data: Mapping[str, Any]) -> bool:
    """Tell whether a file is LLaMA-Factory's, by its keys."""
    asked = sum(key in data for key in _MARKS)
    second = sum(key in data for key in _FIRST)
    return asked > 1 or second > 1 or ("model_name_or_path" in data and asked + second > 0)


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read a recipe.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    keys = Keys(data, file, NAME, defaults=DEFAULTS, instead=f"llamafactory-cli train {file}")
    _check_kind(keys)
    keys.refuse(REFUSED)
    found = trainer.arguments(keys, given)
    kind = keys.text("finetuning_type")
    if kind not in ("full", "lora"):
        raise keys.error("finetuning_type", "trains what a plan has no words for")
    quant = _quant(keys)
    found |= {
        "model": model(keys, "model_name_or_path"),
        "task": "causal-lm",
        "seq": keys.count("cutoff_len"),
        "checkpointing": not keys.flag("disable_gradient_checkpointing") or None,
        "attention": _attention(keys),
        "liger": trainer.liger(keys, "enable_liger_kernel", "use_liger_kernel"),
        "precision": _precision(keys, kind),
        "quant": quant,
        "kbit_prepare": None if quant is None else False,
        "lora": _lora(keys, kind),
    }
    again = keys.flag("use_reentrant_gc") or "use_reentrant_gc" not in data
    found["use_reentrant"] = again if found["checkpointing"] else None
    if keys.flag("neat_packing") | keys.flag("packing") or (
        data.get("stage") == "pt" and data.get("packing") is None
    ):
        found["padding"] = False
    keys.get("model_max_length")
    known = [one for part in ("data", "finetuning", "model", "generating", "training")
             if (one := schema("llamafactory", f"hparams/{part}_args.py",
                               *_classes(part))) is not None]  # fmt: skip
    return trainer.finish(keys, NAME, found, NO_EFFECT, known)


def _classes(part: str) -> tuple[str, ...]:
    return {
        "model": ("BaseModelArguments", "QuantizationArguments", "ProcessorArguments"),
        "finetuning": ("LoraArguments", "RLHFArguments", "FinetuningArguments"),
    }.get(part, (f"{part.capitalize()}Arguments",))


def _check_kind(keys: Keys) -> None:
    """Refuse recipes that train nothing, or not as an estimate does."""
    if second := next((key for key in _FIRST if key in keys.data), None):
        raise UsageError(
            f"{keys.file} is a recipe of LLaMA-Factory's second format ({second}), which memcalc "
            f"does not read: run it by memcalc simulate -- llamafactory-cli train {keys.file}."
        )
    trains = keys.data.get("do_train")
    if trains is False or (trains is None and not {"stage", "output_dir"} & keys.data.keys()):
        raise UsageError(f"{keys.file} is a recipe that trains nothing: add do_train: true.")
    if keys.data.get("stage") not in (None, "pt", "sft"):
        raise keys.error("stage", "trains on preferences or rewards, which an estimate does not")


def _precision(keys: Keys, kind: str) -> str:
    half = next((name for name in ("bf16", "fp16") if keys.flag(name)), None)
    if keys.flag("pure_bf16"):
        return "bf16"
    if half is None:
        return "fp32" if kind == "full" else "bf16"
    if half == "fp16" and kind == "lora":
        keys.unread.append(trainer.OVER_FP16)
        return "fp16"
    return f"amp-{half}" if kind == "full" else "bf16+amp"


def _attention(keys: Keys) -> str | None:
    named = keys.text("flash_attn") or "auto"
    if named not in _ATTENTION:
        raise keys.error("flash_attn", "is an attention that memcalc does not run")
    return _ATTENTION[named]


def _quant(keys: Keys) -> str | None:
    bits = keys.count("quantization_bit")
    method = keys.text("quantization_method") or "bnb"
    if bits is None:
        keys.get("double_quantization", "quantization_type")
        return None
    if method not in ("bnb", "bitsandbytes"):
        raise keys.error("quantization_method", "is a quantization that memcalc does not run")
    if bits not in (4, 8):
        raise keys.error("quantization_bit", "is neither 4 nor 8", "correct it")
    with_defaults = keys.over(keys.data, _OF_BITS if bits == 4 else {})
    double, kind = with_defaults.flag("double_quantization"), with_defaults.get("quantization_type")
    return "int8" if bits == 8 else of_4_bit(keys, "quantization_type", str(kind), double=double)


def of_4_bit(keys: Keys, key: str, kind: str, *, double: bool) -> str:
    """Return a plan's name for a quantization of bitsandbytes in 4 bit.

    Raises:
        UsageError: there is none.
    """
    if kind not in ("nf4", "fp4") or (kind == "fp4" and double):
        raise keys.error(key, "is no quantization that memcalc runs", "write nf4")
    return f"{kind}-dq" if double else kind


def _lora(keys: Keys, kind: str) -> str | None:
    told = keys.over(keys.data, _OF_LORA if kind == "lora" else {})
    rank, names = told.count("lora_rank"), told.texts("lora_target")
    dropout = told.get("lora_dropout")
    if kind != "lora":
        return None
    return lora(keys, rank, "all-linear" if names == ["all"] else names, dropout)


def write(plan: Plan) -> dict[str, Any]:
    """Write a plan; what LLaMA-Factory has no word for is left out."""
    named = trainer.optimizer_name(plan)
    trained = adapter(plan.adapters) if plan.adapters is not None else None
    half = trainer.half(plan)
    pure = plan.precision == "bf16"
    return {
        "model_name_or_path": plan.model,
        "stage": "sft",
        "do_train": True,
        "finetuning_type": "full" if trained is None else "lora",
        **({"lora_rank": trained.r, "lora_target": _joined(trained.target)} if trained else {}),
        **({"lora_dropout": trained.dropout} if trained and trained.dropout else {}),
        **_bits(plan),
        **({"cutoff_len": plan.seq} if plan.seq else {}),
        "per_device_train_batch_size": plan.batch,
        "gradient_accumulation_steps": plan.grad_accum,
        **({"pure_bf16": True} if pure else {half: True} if "amp" in plan.precision else {}),
        **({} if plan.checkpointing else {"disable_gradient_checkpointing": True}),
        **({"enable_liger_kernel": True} if plan.liger else {}),
        **({"optim": named} if named else {}),
        **({"deepspeed": f"examples/deepspeed/ds_z{ZERO_STAGES[plan.parallel]}_config.json"}
           if plan.devices > 1 and plan.parallel in ZERO_STAGES else {}),
    }  # fmt: skip


def _joined(target: str | tuple[str, ...]) -> str:
    return "all" if isinstance(target, str) else ",".join(target)


def _bits(plan: Plan) -> dict[str, Any]:
    if plan.scheme == "int8":
        return {"quantization_bit": 8}
    if plan.scheme not in ("nf4", "nf4-dq", "fp4"):
        return {}
    kind, _, double = plan.scheme.partition("-")
    return {
        "quantization_bit": 4,
        **({} if kind == "nf4" else {"quantization_type": kind}),
        **({} if double else {"double_quantization": False}),
    }
