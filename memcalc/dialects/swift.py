"""ms-swift's arguments, as YAML or JSON, or as a command ``swift sft`` in a shell script.

Source: ms-swift 4.6.0 (3602360), ``swift/arguments``, ``swift/trainers/arguments.py`` and
``swift/config``: the model is loaded in bfloat16 unless another type is asked for, adapters and
what else is trained are in fp32 under autocast of it.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.dialects import trainer
from memcalc.dialects.llamafactory import of_4_bit
from memcalc.dialects.recipe import Keys, Recipe, by_key, lora, model, schema
from memcalc.errors import UsageError
from memcalc.records.names import TRAINER_OPTIM, ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import adapter

NAME = "ms-swift"
DEFAULTS = {
    "per_device_train_batch_size": 1,
    "gradient_checkpointing": True,
    "tuner_type": "lora",
    "torch_dtype": "bfloat16",
    "optim": TRAINER_OPTIM,
}
_OF_LORA = {"lora_rank": 8, "lora_dropout": 0.05, "target_modules": "all-linear"}
_BATCH = 16
"""Samples of a step that accumulation fills up to where nobody says more."""
_OF_ZERO = {
    f"zero{stage}{more}": {
        "zero_optimization": {"stage": stage, **{key: {"device": "cpu"} for key in parts}},
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
    }
    for stage, more, parts in (
        (1, "", ()),
        (2, "", ()),
        (3, "", ()),
        (2, "_offload", ("offload_optimizer",)),
        (3, "_offload", ("offload_optimizer", "offload_param")),
    )
}
"""What its names for DeepSpeed stand for (``swift/config``)."""
_FSDP2 = {"fsdp_version": 2, "activation_checkpointing": True}
_ATTENTION = {"sdpa": "sdpa", "eager": "eager", "flash_attn": "flash_attention_2",
              "flash_attention_2": "flash_attention_2"}  # fmt: skip
_MARKS = ("tuner_type", "train_type", "target_modules", "split_dataset_ratio", "rlhf_type",
          "model_author", "swift_command", "attn_impl", "sft_type", "use_ray")  # fmt: skip
NO_EFFECT = """
    dataset val_dataset cached_dataset cached_val_dataset split_dataset_ratio dataset_*
    val_dataset_* load_from_cache_file streaming interleave_prob stopping_strategy
    shuffle_buffer_size download_mode columns strict disable_auto_column_mapping model_author
    model_name custom_* template system truncation_strategy agent_template norm_bbox
    use_chat_template padding_side loss_scale template_backend response_prefix enable_thinking
    preserve_thinking add_non_thinking_prefix model_type model_revision local_repo_path
    init_strategy max_model_len max_new_tokens temperature top_k top_p repetition_penalty
    num_beams stream stop_words lora_alpha use_rslora lorap_* init_weights tuner_backend
    external_plugins model_kwargs enable_npu_model_patch load_args load_data_args
    packing_num_proc packing_length packing_strategy lazy_tokenize use_hf hub_*
    ignore_args_error add_version create_checkpoint_symlink swanlab_* merge_lora
    safe_serialization max_shard_size vit_lr aligner_lr resume_only_model check_model
    router_aux_loss_coef enable_channel_loss acc_strategy disable_ignore_empty_think
    extra_eval_args hqq_axis is_binary_loss_scale structured_outputs_regex top_logprobs
    use_logits_to_keep train_dataloader_shuffle max_epochs metric metric_warmup_step callbacks
    early_stop_interval galore_* lisa_* vera_* boft_* fourier_* adalora_* lora_ga_* llamapro_*
    reft_* adapter_* freeze_llm freeze_vit freeze_aligner vit_gradient_checkpointing
    nproc_per_node nnodes node_rank master_addr master_port use_flash_ckpt task_type
    zero_hpz_partition_size bnb_4bit_compute_dtype swift_command adapters logprobs
    ds3_gather_for_generation CUDA_VISIBLE_DEVICES OMP_NUM_THREADS MASTER_* NODE_RANK NNODES
    SYSTEM_PROMPT WANDB_* USE_HF HF_ENDPOINT TOKENIZERS_PARALLELISM NCCL_* TORCH_* MODELSCOPE_*
    HF_* DISABLE_* SPEAKER_NAME ASCEND_RT_VISIBLE_DEVICES HCCL_* PYTORCH_NPU_ALLOC_CONF
    TASK_QUEUE_ENABLE CPU_AFFINITY_CONF
"""
REFUSED = by_key(
    """
    training on preferences or rewards: rlhf_type
    DoRA: use_dora
    modules that are trained as a whole: modules_to_save
    adapters by a pattern: target_regex
    adapters of parameters: target_parameters
    trained biases: lora_bias
    adapters of another type: lora_dtype
    its own adapters: use_swift_lora
    frozen parameters: freeze_parameters*
    training of some parameters: trainable_parameters*
    GaLore: use_galore
    LISA: lisa_activated_layers
    its own optimizers: optimizer
    another loss: enable_dft_loss loss_type mrl_dims
    another head: num_labels problem_type
    parallelism over sequences: sequence_parallel_size CELOSS_PARALLEL_SIZE
    DeepSpeed's tensor parallelism: deepspeed_autotp_size
    a model in several places: device_map max_memory
    changes to the model's config: rope_scaling
    a larger vocabulary: new_special_tokens
    images: max_pixels MAX_PIXELS IMAGE_*
    videos: VIDEO_* FPS*
    audio: ENABLE_AUDIO_OUTPUT
    kernels for experts: experts_impl
    Ray: use_ray
    quantization after training: quant_n_samples
    another storage: bnb_4bit_quant_storage
    """
)


def is_one(data: Mapping[str, Any]) -> bool:
    """Tell whether a file is ms-swift's, by its keys."""
    return ("model" in data or "model_id_or_path" in data) and any(key in data for key in _MARKS)


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read a recipe of supervised fine-tuning or of further pre-training.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    command = data.get("swift_command", "sft")
    if command not in ("sft", "pt"):
        raise UsageError(f"{file} runs swift {command}, which an estimate does not.")
    keys = Keys(data, file, NAME, defaults=DEFAULTS, instead=f"swift sft --config {file}")
    keys.refuse(REFUSED)
    kind = keys.text("tuner_type", "train_type", "sft_type")
    if kind not in ("full", "lora"):
        raise keys.error("tuner_type", "trains what a plan has no words for")
    if keys.get("task_type") not in (None, "causal_lm"):
        raise keys.error("task_type", "has another head")
    devices = keys.count("NPROC_PER_NODE", "nproc_per_node")
    spread = keys.over(_as_the_trainer(keys))
    found = trainer.arguments(spread, {**given, "devices": devices or given.get("devices")})
    weights = keys.text("torch_dtype")
    quant = _quant(keys)
    found |= {
        "model": model(keys, "model", "model_id_or_path"),
        "task": "causal-lm",
        "seq": keys.count("max_length"),
        "devices": devices,
        "grad_accum": found.get("grad_accum") or _filled(found.get("batch"), devices),
        "precision": _precision(keys, str(weights), kind),
        "attention": _attention(keys),
        "quant": quant,
        "kbit_prepare": None if quant is None else False,
        "lora": _lora(keys, kind),
        "padding": False if keys.flag("packing") | keys.flag("padding_free") else None,
        "alloc_conf": keys.text("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    }
    known = [one for path, name in (
        ("arguments/base_args/data_args.py", "DataArguments"),
        ("arguments/base_args/model_args.py", "ModelArguments"),
        ("arguments/tuner_args.py", "TunerArguments"),
        ("trainers/arguments.py", "TrainArgumentsMixin"),
    ) if (one := schema("swift", path, name)) is not None]  # fmt: skip
    return trainer.finish(keys, NAME, found, NO_EFFECT, known)


def _as_the_trainer(keys: Keys) -> dict[str, Any]:
    """Return the keys with what its names for DeepSpeed and FSDP stand for."""
    data = dict(keys.data)
    named = data.get("deepspeed")
    if named in _OF_ZERO:
        data["deepspeed"] = _OF_ZERO[named]
    elif named == "zero0":
        del data["deepspeed"]
    if data.get("fsdp") == "fsdp2":
        data |= {"fsdp": True, "fsdp_config": _FSDP2}
        data.setdefault("gradient_checkpointing", False)
    if not any(key in data for key in ("bf16", "fp16")):
        half = {"bfloat16": "bf16", "float16": "fp16"}.get(str(keys.get("torch_dtype")))
        data |= {half: True} if half else {}
    return data


def _filled(batch: Any, devices: int | None) -> int:
    samples = (batch or 1) * (devices or 1)
    return -(-_BATCH // samples)


def _precision(keys: Keys, weights: str, kind: str) -> str:
    asked = [name for name in ("bf16", "fp16") if keys.flag(name)]
    if weights == "float32":
        return f"amp-{asked[0]}" if asked else "amp-fp16" if kind == "full" else "fp32"
    if weights == "float16":
        keys.unread.append(trainer.OVER_FP16)
        return "fp16"
    return "bf16+amp"


def _attention(keys: Keys) -> str | None:
    named = keys.text("attn_impl")
    if named not in (None, *_ATTENTION):
        raise keys.error("attn_impl", "is an attention that memcalc does not run")
    return _ATTENTION[named] if named else None


def _quant(keys: Keys) -> str | None:
    method, bits = keys.text("quant_method"), keys.get("quant_bits", "quantization_bit")
    double = keys.data.get("bnb_4bit_use_double_quant", True) not in (False, "false", "False")
    kind = str(keys.get("bnb_4bit_quant_type") or "nf4")
    keys.get("bnb_4bit_use_double_quant")
    if method is None and bits is None:
        return None
    if method not in (None, "bnb"):
        raise keys.error("quant_method", "is a quantization that memcalc does not run")
    if str(bits) not in ("4", "8"):
        raise keys.error("quant_bits", "is neither 4 nor 8", "correct it")
    return (
        "int8" if str(bits) == "8" else of_4_bit(keys, "bnb_4bit_quant_type", kind, double=double)
    )


def _lora(keys: Keys, kind: str) -> str | None:
    told = keys.over(keys.data, _OF_LORA if kind == "lora" else {})
    rank, names = told.count("lora_rank"), told.texts("target_modules")
    dropout = told.get("lora_dropout")
    if kind != "lora":
        return None
    return lora(keys, rank, "all-linear" if names == ["all-linear"] else names, dropout)


def write(plan: Plan) -> dict[str, Any]:
    """Write a plan; what ms-swift has no word for is left out."""
    trained = adapter(plan.adapters) if plan.adapters is not None else None
    half = {"bf16+amp": "bfloat16", "bf16": "bfloat16", "fp16": "float16"}
    arguments = trainer.write(plan)
    for name in ("bf16", "fp16", "fsdp_config"):
        arguments.pop(name, None)
    bits = {"int8": 8, "nf4": 4, "nf4-dq": 4, "fp4": 4}.get(plan.scheme or "")
    return {
        "model": plan.model,
        **arguments,
        "gradient_checkpointing": plan.checkpointing,
        "tuner_type": "full" if trained is None else "lora",
        **({"lora_rank": trained.r, "target_modules": "all-linear"
            if isinstance(trained.target, str) else list(trained.target),
            "lora_dropout": trained.dropout} if trained else {}),
        "torch_dtype": half.get(plan.precision, "float32"),
        **({"quant_method": "bnb", "quant_bits": bits} if bits else {}),
        **({"bnb_4bit_use_double_quant": False} if plan.scheme in ("nf4", "fp4") else {}),
        **({"bnb_4bit_quant_type": "fp4"} if plan.scheme == "fp4" else {}),
        **({"max_length": plan.seq} if plan.seq else {}),
        **({"deepspeed": f"zero{ZERO_STAGES[plan.parallel]}"}
           if plan.devices > 1 and plan.parallel in ZERO_STAGES else {}),
    }  # fmt: skip
