"""axolotl's YAML.

Source: axolotl 0.18.0 (067b021), ``utils/schemas``, ``utils/config/__init__.py``,
``loaders/model.py`` and ``loaders/adapter.py``: with ``bf16`` the weights themselves are loaded in
bfloat16, with ``fp16`` in float16, and a quantized base is prepared as peft does and cast back;
gradients are clipped at 1.0 by the Trainer.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.dialects import trainer
from memcalc.dialects.recipe import Keys, Recipe, by_key, lora, model, optimizer
from memcalc.records.names import FLASH_ATTN, TRAINER_OPTIM, ZERO_STAGES
from memcalc.records.plan import Plan
from memcalc.records.values import adapter

NAME = "axolotl"
DEFAULTS = {
    "micro_batch_size": 1,
    "sequence_len": 512,
    "optimizer": TRAINER_OPTIM,
}
_ATTENTION = {
    "flash_attention": "flash_attention_2",
    "sdp_attention": "sdpa",
    "eager_attention": "eager",
}
_OTHER_ATTENTION = ("xformers_attention", "flex_attention", "sage_attention", "s2_attention")
_FUSED = "fused kernels of adapters"
_KERNELS = ("rope", "rms_norm", "glu_activation", "fused_linear_cross_entropy")
"""What Liger replaces by default, by the names of axolotl's plugin."""
_QUANT = {"load_in_4bit": "nf4-dq", "load_in_8bit": "int8"}
"""What its switches mean for bitsandbytes."""
_PIECE = 256
_FSDP = 1
"""The version of FSDP that accelerate takes where no variable of the shell says more."""
_NOTED = {
    "lora_mlp_kernel": _FUSED,
    "lora_qkv_kernel": _FUSED,
    "lora_o_kernel": _FUSED,
    "lora_embedding_kernel": _FUSED,
    "resize_token_embeddings_to_32x": "a vocabulary that is filled up to a multiple of 32",
}
_PLUGIN = "axolotl.integrations.liger.LigerPlugin"
_HALVES = {"amp-bf16": True, "bf16+amp": True, "bf16": "full"}
NO_EFFECT = """
    datasets test_datasets dataset_* datasets_* shuffle_* skip_prepare_dataset val_set_size
    num_dataset_shards_to_save chat_template* eot_tokens special_tokens tokens
    added_tokens_overrides tokenizer_* base_model_* train_on_inputs lr_* learning_rate
    num_epochs jagged_restart_* torchdistx_path saves_per_epoch evals_per_epoch wandb_* mlflow_*
    comet_* swanlab_* trackio_* otel_* gradio_* use_wandb use_mlflow use_comet use_swanlab
    use_trackio use_tensorboard use_otel_metrics hf_mlflow_log_artifacts cut_cross_entropy
    eta_min lora_alpha lora_fan_in_fan_out lora_model_dir peft_use_rslora loraplus_* lora_on_cpu
    merge_lora merge_method strict trust_remote_code hf_use_auth_token push_dataset_to_hub
    auto_resume_from_checkpoints resume_from_checkpoint loss_watchdog_* early_stopping_patience
    gptq gptq_* local_rank world_size ddp device min_sample_len excess_length_strategy
    max_prompt_len eval_* do_causal_lm_eval do_bench_eval bench_* generate_samples
    num_generation_samples generation_* gc_steps gc_collect_steps low_cpu_mem_usage
    is_falcon_derived_model is_llama_derived_model is_mistral_derived_model
    is_qwen_derived_model default_system_message fix_untrained_tokens sample_packing_*
    multipack_real_batches total_num_tokens total_supervised_tokens curriculum_sampling
    experimental_skip_move_to_device mean_resizing_embeddings device_map random_init dion_*
    qgalore_* pose_* image_resize_algorithm rpo_alpha fsdp_final_state_dict_type
    precompute_ref_log_probs lora_alpha_pattern revision_of_model save_safetensors secrets gpu
    gpu_count provider volumes branch dockerfile_commands timeout timeout_preprocess memory
    memory_preprocess node_count project_name test_value full_finetune max_packed_sequence_len
    streaming streaming_multipack_buffer_size pretrain_multipack_* pretraining_dataset
    pretraining_sample_concatenation is_preprocess preprocess_iterable axolotl_config_path
    profiler_steps* trainer_cls center_rewards_coefficient dpo_* rl_beta kto_* simpo_gamma
    cpo_alpha role_boundaries use_ray ray_* resources_per_worker pad_to_multiple_of adamw_*
    bnb_config_kwargs embeddings_skip_upcast max_memory gpu_memory_limit
"""
REFUSED = by_key(
    """
    training on preferences or rewards: rl
    a reward model: reward_model process_reward_model
    training on rewards: trl ebft nemo_gym_*
    a serving engine beside the training: vllm
    images or audio: processor_type processor_kwargs
    images: image_size
    a part of a model: cls_model_config
    changes to the model's config: model_config overrides_of_model_config rope_scaling
    changes to how the model is loaded: overrides_of_model_kwargs
    another quantization: model_quantization_config* nonexpert_quantization
    experts in 4 bit: quantize_moe_experts
    quantization-aware training: qat
    quantization after training: quantization
    sparse weights: llmcompressor
    activations in host memory: activation_offloading
    layers in host memory: layer_offloading
    checkpoints while it runs: dynamic_checkpoint
    checkpointing of some operations: selective_checkpointing
    training of some parameters: unfrozen_parameters
    frozen towers: freeze_mm_modules
    modules that are trained as a whole: lora_modules_to_save
    adapters of parameters: lora_target_parameters
    ranks by layer: lora_rank_pattern
    adapters of another kind: peft peft_init_lora_weights
    DoRA: peft_use_dora
    adapters of some layers: peft_layers_*
    repeated layers: peft_layer_replication
    trained tokens: peft_trainable_token_indices
    tied adapters: peft_ensure_weight_tying
    the adapters' type: peft_autocast_adapter_dtype
    sharded loading: qlora_sharded_model_loading
    ReLoRA: relora*
    LISA: lisa_*
    Spectrum: spectrum_*
    MoRA: mora
    fused kernels: fused_attn_kernel
    fused kernels of flash-attn: flash_attn_*
    BetterTransformer: flash_optimum
    kernels of the kernels hub: use_kernels
    kernels for experts: use_scattermoe use_sonicmoe use_dsv4_kernels use_glm_dsa_kernels
        experts_implementation dsv4_* moe_* expert_backend
    1-bit weights: use_onebitllms
    kernels for one model: gemma4_*
    weights in nvfp4: nvfp4_*
    another attention: large_head_attention sdpa_varlen flex_attn_compile_kwargs
        scaling_softmax*
    experts as linear layers: llama4_linearized_experts
    layers in tiles: tiled_mlp*
    products in fp8: fp8*
    options of the compiler: torch_compile_options
    DeepSpeed's compiler: deepcompile
    parallelism over sequences, experts or tensors: *parallel_size
    parallelism over sequences: sequence_parallel_degree context_parapllel_size heads_k_stride
        ring_attn_func
    a mesh: dp_*_size
    parallelism over experts: expert_parallel_*
    norms in fp32: fp32_norms fp32_norm_classes
    a smaller vocabulary: shrink_embeddings
    weights in fp32: reinit_weights
    batches without padding: batch_flattening
    noise added to embeddings: noisy_embedding_alpha
    positions that are skipped: use_pose
    another loss: use_eaft eaft_*
    training by diffusion: diffusion
    distillation: kd_*
    all experts at once: dense_mixer
    gradients that are kept: grokfast_*
    training elsewhere: hatchery
    another optimizer for embeddings: embedding_lr*
    training on preferences: orpo_alpha
    evaluation by lm-eval: lm_eval_*
    """
)
_PLUGINS = {
    "spectrum": "Spectrum",
    "kd": "distillation",
    "diffusion": "training by diffusion",
}


def is_one(data: Mapping[str, Any]) -> bool:
    """Tell whether a file is axolotl's, by its keys."""
    return "base_model" in data and ("micro_batch_size" in data or "datasets" in data)


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read a recipe.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    instead = f"axolotl train {file}"
    keys = Keys(data, file, NAME, defaults=DEFAULTS, instead=instead)
    keys.refuse(REFUSED)
    found = trainer.arguments(_as_the_trainer(keys), given)
    quant, attention = _quant(keys), _attention(keys)
    found |= {
        "model": model(keys, "base_model"),
        "task": _task(keys),
        "batch": keys.count("micro_batch_size"),
        "seq": keys.count("sequence_len"),
        "optim": optimizer(keys, "trainer", "optimizer"),
        "checkpointing": keys.get("gradient_checkpointing") not in (None, False) or None,
        "precision": _precision(keys),
        "attention": attention,
        "liger": _liger(keys),
        "loss_chunks": _chunks(keys),
        "grad_accum": _accumulation(keys),
        "quant": quant,
        "kbit_prepare": None if quant is None else False,
        "lora": _lora(keys),
    }
    _check_plugins(keys)
    if found["lora"] is None and found["precision"] == "bf16+amp" and attention != FLASH_ATTN:
        keys.unread.append("that embeddings and norms are trained in fp32")
    if keys.get("gradient_checkpointing") not in (None, True, False, "true"):
        raise keys.error("gradient_checkpointing", "keeps activations in host memory")
    keys.note(_NOTED)
    if keys.flag("sample_packing") | keys.flag("pad_to_sequence_len"):
        found["padding"] = False
    return trainer.finish(keys, NAME, found, NO_EFFECT)


def _as_the_trainer(keys: Keys) -> Keys:
    """Return the keys without those that axolotl gives another meaning than the Trainer."""
    other = ("bf16", "fp16", "tf32", "optim", "gradient_checkpointing", "use_cache",
             "resume_from_checkpoint", "use_cpu")  # fmt: skip
    data = {key: one for key, one in keys.data.items() if key not in other}
    version = keys.get("fsdp_version") or _FSDP
    if data.get("fsdp") or data.get("fsdp_config"):
        config = data.get("fsdp_config")
        data["fsdp_config"] = {
            "fsdp_version": version,
            **(config if isinstance(config, dict) else {}),
        }
    # Precision that the shards are gathered in.
    data |= {name: True for name in ("bf16", "fp16") if keys.data.get(name)}
    return keys.over(data)


def _task(keys: Keys) -> str:
    kind = keys.text("model_type", "type_of_model") or ""
    for name, task in (("SequenceClass", "sequence-classification"), ("TokenClass", "token-class")):
        if name in kind:
            raise keys.error("model_type", f"has another head ({task})", "name the task by --task")
    if "ImageText" in kind or "ConditionalGeneration" in kind:
        raise keys.error("model_type", "takes images")
    if keys.get("num_labels"):
        raise keys.error("num_labels", "has another head")
    return "causal-lm"


def _accumulation(keys: Keys) -> int | None:
    steps, whole = keys.count("gradient_accumulation_steps"), keys.count("batch_size")
    if steps is None and whole is not None:
        return max(1, whole // (keys.count("micro_batch_size") or 1))
    return steps


def _quant(keys: Keys) -> str | None:
    asked = [ours for key, ours in _QUANT.items() if keys.flag(key)]
    return asked[0] if asked else None


def _precision(keys: Keys) -> str:
    keys.get("bfloat16", "float16")
    halves = {name: keys.data.get(name) for name in ("bf16", "fp16", "bfloat16", "float16")}
    if not any(one is not None for one in halves.values()):
        halves["bf16"] = keys.over(keys.data, {"bf16": "auto"}).get("bf16")
    keys.get("float32", "fp16")
    keys.get("tf32")
    if halves["bf16"] or halves["bfloat16"]:
        # It loads the model in bf16, and tells the Trainer bf16=True unless it is "full".
        return "bf16" if halves["bf16"] == "full" else "bf16+amp"
    if halves["fp16"] or halves["float16"]:
        return "fp16"
    return "tf32" if keys.data.get("tf32") else "fp32"


def _attention(keys: Keys) -> str | None:
    for name in _OTHER_ATTENTION:
        if keys.flag(name):
            raise keys.error(name, "is an attention that memcalc does not run")
    named = keys.text("attn_implementation")
    asked = next((ours for key, ours in _ATTENTION.items() if keys.flag(key)), None)
    if named not in (None, "sdpa", "eager", "flash_attention_2"):
        raise keys.error("attn_implementation", "is an attention that memcalc does not run")
    return named or asked


def _liger(keys: Keys) -> bool | None:
    asked = [name for name in _KERNELS if keys.flag(f"liger_{name}")]
    others = [key for key in keys.data if key.startswith("liger_") and keys.flag(key)]
    if len(asked) == len(_KERNELS):
        return True
    if others:
        left = next(name for name in _KERNELS if name not in asked)
        raise keys.error(
            others[0], f"is one of Liger's kernels, and liger_{left} is not on: an estimate has all"
        )
    return None


def _chunks(keys: Keys) -> int | None:
    plugins = str(keys.data.get("plugins"))
    if keys.data.get("cut_cross_entropy", "CutCrossEntropy" in plugins) is True:
        keys.unread.append("how Cut Cross-Entropy differs from a loss in pieces of 256 tokens")
        keys.loss_piece = _PIECE
        return None
    if not keys.flag("chunked_cross_entropy"):
        keys.get("chunked_cross_entropy_num_chunks")
        return None
    return keys.count("chunked_cross_entropy_num_chunks") or 8


def _lora(keys: Keys) -> str | None:
    kind = keys.text("adapter")
    rank, targets = keys.count("lora_r"), keys.get("lora_target_modules")
    linear, dropout = keys.flag("lora_target_linear"), keys.get("lora_dropout")
    if kind is None:
        return None
    if kind not in ("lora", "qlora"):
        raise keys.error("adapter", "is no adapter that memcalc trains")
    if not dropout and "lora_mlp_kernel" not in keys.data:
        keys.unread.append(f"{_FUSED}, which axolotl turns on where it can")
    if linear or targets in ("all-linear", None):
        if targets not in ("all-linear", None) and not linear:
            raise keys.error("lora_target_modules", "is no list of names", "correct it")
        targets = "all-linear"
    return lora(keys, rank, targets, dropout)


def _check_plugins(keys: Keys) -> None:
    for plugin in keys.get("plugins") or []:
        part = str(plugin).split(".")[2] if str(plugin).count(".") > 2 else str(plugin)
        if part in _PLUGINS and part not in keys.data:
            raise keys.error("plugins", f"has {part} ({_PLUGINS[part]}), which has no place in an "
                             "estimate")  # fmt: skip
        if part not in (*_PLUGINS, "cut_cross_entropy", "liger", "swanlab"):
            raise keys.error("plugins", f"has {part}, which may change memory")


def write(plan: Plan) -> dict[str, Any]:
    """Write a plan; what axolotl has no word for is left out."""
    named = trainer.optimizer_name(plan)
    return {
        "base_model": plan.model,
        **({"sequence_len": plan.seq} if plan.seq else {}),
        "micro_batch_size": plan.batch,
        "gradient_accumulation_steps": plan.grad_accum,
        **({"bf16": _HALVES[plan.precision]} if plan.precision in _HALVES else {}),
        **({"fp16": True} if "fp16" in plan.precision else {}),
        **({"optimizer": named} if named else {}),
        **({"gradient_checkpointing": True} if plan.checkpointing else {}),
        **({"plugins": [_PLUGIN], **{f"liger_{name}": True for name in _KERNELS}}
           if plan.liger else {}),
        **_adapted(plan),
        **_sharded(plan),
    }  # fmt: skip


def _adapted(plan: Plan) -> dict[str, Any]:
    if plan.adapters is None:
        return {}
    told = adapter(plan.adapters)
    loaded = {key: True for key, scheme in _QUANT.items()
              if plan.scheme in (scheme, scheme.removesuffix("-dq"))}  # fmt: skip
    return {
        "adapter": "qlora" if "load_in_4bit" in loaded else "lora",
        **loaded,
        "lora_r": told.r,
        "lora_alpha": int(told.alpha),
        **({"lora_dropout": told.dropout} if told.dropout else {}),
        **({"lora_target_linear": True} if told.target == "all-linear"
           else {"lora_target_modules": list(told.target)}),
    }  # fmt: skip


def _sharded(plan: Plan) -> dict[str, Any]:
    if plan.devices == 1:
        return {}
    if plan.parallel in ZERO_STAGES:
        return {"deepspeed": f"deepspeed_configs/zero{ZERO_STAGES[plan.parallel]}.json"}
    if plan.parallel != "fsdp2":
        return {}
    told = {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP", **dict(plan.parallel_args)}
    return {"fsdp_version": 2, "fsdp_config": told}
