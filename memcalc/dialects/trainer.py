"""transformers' ``TrainingArguments``, as JSON or YAML, and what recipes built on them share.

Source: transformers 5.23, ``training_args.py``, and the arguments of its example scripts.
"""

import fnmatch
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from memcalc import registry
from memcalc.dialects import accelerate, deepspeed
from memcalc.dialects.recipe import Keys, Recipe, Schema, by_key, mapping, model, optimizer, schema
from memcalc.errors import UsageError
from memcalc.records.names import TRAINER_OPTIM
from memcalc.records.plan import Plan

NAME = "TrainingArguments"
STRONG = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "gradient_checkpointing",
    "per_device_eval_batch_size",
    "num_train_epochs",
)
"""Keys that hardly anything else has; two of them make a file one of TrainingArguments."""
DEFAULTS = {"per_device_train_batch_size": 8, "optim": TRAINER_OPTIM}
MODEL_KEYS = ("model_name_or_path", "model_name", "model_id", "base_model")
_LENGTHS = ("max_seq_length", "max_length", "block_size", "model_max_length", "max_source_length")
_ELSEWHERE = {
    "load_in_4bit": "4-bit weights",
    "load_in_8bit": "8-bit weights",
    "use_peft": "adapters",
}
NO_EFFECT = """
    *learning_rate lr_* *_lr warmup_* weight_decay adam_* num_train_epochs max_steps logging_*
    log_* report_to run_name project trackio_* disable_tqdm include_* save_* push_to_hub* hub_*
    load_best_model_at_end metric_for_best_model greater_is_better eval_* evaluation_strategy
    per_device_eval_batch_size per_gpu_eval_batch_size do_* bf16_full_eval fp16_full_eval
    prediction_loss_only batch_eval_metrics seed data_seed dataloader_* remove_unused_columns
    label_names group_by_length train_sampling_strategy length_column_name
    average_tokens_across_devices ddp_backend ddp_timeout local_rank
    deepspeed_multinode_launcher use_mps_device no_cuda accelerator_config debug
    skip_memory_metrics ignore_data_skip overwrite_output_dir output_dir
    restore_callback_states_from_checkpoint enable_jit_checkpoint auto_find_batch_size
    past_index half_precision_backend fp16_backend fp16_opt_level mp_parameters ray_scope
    use_legacy_* include_inputs_for_metrics torchdynamo tpu_* adafactor_* sortish_sampler
    cosine_* early_stopping_*
"""
"""Names and patterns of arguments that change no byte of a training step."""
_SCRIPTS = """
    dataset* train_file validation_file test_file task_name text_column summary_column
    source_lang target_lang max_train_samples max_eval_samples max_predict_samples
    preprocessing_num_workers validation_split_percentage tokenizer_name config_name cache_dir
    model_revision use_fast_tokenizer trust_remote_code token streaming keep_linebreaks
    overwrite_cache pad_to_max_length ignore_mismatched_sizes low_cpu_mem_usage
    val_max_target_length max_target_length num_beams max_answer_length doc_stride
    n_best_size return_entity_level_metrics
"""
"""Arguments of transformers' example scripts, which stand in the same file."""
REFUSED = by_key(
    """
    a loss that keeps log probabilities: label_smoothing_factor
    noise added to embeddings: neftune_noise_alpha
    a cache that is emptied: torch_empty_cache_steps
    an optimizer for some layers: optim_target_modules
    a mesh: parallelism_config
    deterministic kernels: full_determinism
    FairScale: sharded_ddp
    TorchScript: jit_mode_eval
    another compiler: torch_compile_backend
    """
)
OVER_FP16 = "how autocast over fp16 weights differs from fp16 without it"
_DDP = ("find_unused_parameters", "bucket_cap_mb", "broadcast_buffers", "static_graph")
_STRATEGIES = ("full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "hybrid_shard_zero2")
_FIRST = 1


def is_one(data: Mapping[str, Any]) -> bool:
    """Tell whether a file holds TrainingArguments, by its keys."""
    return sum(key in data for key in STRONG) >= 2


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read TrainingArguments, and the model and length beside them.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    keys = Keys(data, file, NAME, defaults=DEFAULTS)
    settings = arguments(keys, given)
    settings["model"] = model(keys, *MODEL_KEYS)
    settings["seq"] = keys.count(*_LENGTHS)
    if keys.flag("adafactor"):
        settings["optim"] = "adafactor"
    keys.refuse(_ELSEWHERE)
    return finish(keys, NAME, settings, _SCRIPTS)


def has_effect(name: str) -> bool:
    """Tell whether an argument of the Trainer may change memory."""
    return not any(fnmatch.fnmatchcase(name, one) for one in NO_EFFECT.split())


def finish(
    keys: Keys,
    dialect: str,
    settings: Mapping[str, Any],
    no_effect: str = "",
    declared: Iterable[Schema] = (),
) -> Recipe:
    """Refuse keys that nobody read, and make the recipe; the Trainer's own are known."""
    keys.refuse(REFUSED)
    known = schema("transformers", "training_args.py", "TrainingArguments")
    keys.finish(NO_EFFECT + no_effect, [*declared, *([known] if known is not None else [])])
    return keys.recipe(dialect, settings)


def arguments(keys: Keys, given: Mapping[str, Any]) -> dict[str, Any]:
    """Read the arguments of the Trainer that change memory.

    Raises:
        UsageError: one asks for what memcalc does not answer.
    """
    found: dict[str, Any] = {
        "loop": "trainer",
        "batch": keys.count("per_device_train_batch_size", "per_gpu_train_batch_size"),
        "grad_accum": keys.count("gradient_accumulation_steps"),
        "optim": optimizer(keys, "trainer", "optim"),
        "max_grad_norm": clipping(keys),
        "checkpointing": keys.flag("gradient_checkpointing", "activation_checkpointing") or None,
        "kv_cache": keys.flag("use_cache") or None,
        "precision": precision(keys),
        "target": "cpu" if keys.flag("use_cpu") else None,
        "resume": bool(keys.get("resume_from_checkpoint")) or None,
        "liger": liger(keys),
        "compile": _compiled(keys),
    }
    if keys.get("optim_args"):
        found["optim_args"] = _optimizer_arguments(keys, str(found["optim"]))
    found["use_reentrant"] = reentrant(
        keys, "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"
    )
    _evaluation(keys, found["batch"] or 1)
    more, unread = spread_over(keys, given)
    keys.unread += unread
    # A file of DeepSpeed says itself what the Trainer makes sure that its arguments say.
    return {**more, **{key: one for key, one in found.items() if one is not None}}


def clipping(keys: Keys) -> float | None:
    """Read the norm that gradients are clipped to; None: the Trainer's own."""
    norm = keys.get("max_grad_norm")
    if norm in (None, 1, 1.0):
        return None
    if isinstance(norm, bool) or not isinstance(norm, int | float) or norm <= 0:
        raise keys.error("max_grad_norm", "clips nothing, and the Trainer's loop here clips",
                         "leave it out")  # fmt: skip
    return float(norm)


def precision(keys: Keys) -> str | None:
    """Read the precision of weights that are held in fp32."""
    halves = {"bf16": "amp-bf16", "fp16": "amp-fp16", "tf32": "tf32"}
    asked = [ours for name, ours in halves.items() if keys.flag(name)]
    return asked[0] if asked else None


def liger(keys: Keys, *names: str) -> bool | None:
    """Read whether Liger's kernels replace those of the model."""
    if isinstance(config := keys.get("liger_kernel_config"), dict) and not all(config.values()):
        raise keys.error("liger_kernel_config", "takes some of Liger's kernels and not all")
    return keys.flag(*(names or ("use_liger_kernel",))) or None


def reentrant(keys: Keys, *names: str) -> bool | None:
    """Read which variant of checkpointing is asked for; None: the library's own."""
    told = keys.get(*names)
    named = told.get("use_reentrant") if isinstance(told, dict) else None
    asked = keys.flag("gradient_checkpointing", "activation_checkpointing")
    return named if isinstance(named, bool) and asked else None


def variant(plan: Plan) -> dict[str, Any]:
    """Write the variant of checkpointing that a plan names, as keyword arguments."""
    if plan.use_reentrant is None:
        return {}
    return {"gradient_checkpointing_kwargs": {"use_reentrant": plan.use_reentrant}}


def _compiled(keys: Keys) -> str | None:
    mode = keys.get("torch_compile_mode")
    backend = keys.get("torch_compile_backend")
    if backend not in (None, "inductor"):
        raise keys.error("torch_compile_backend", "is no compiler that memcalc runs")
    return str(mode or "default") if keys.flag("torch_compile") or mode else None


def _optimizer_arguments(keys: Keys, name: str) -> dict[str, Any]:
    """Read the optimizer's arguments; those that change no byte are known by its row."""
    told = keys.get("optim_args")
    pairs = told if isinstance(told, dict) else _pairs(keys, str(told))
    row = registry.find(name, {}, "trainer").row
    if strange := next((key for key in pairs if key not in (*row.defaults, *row.takes)), None):
        raise keys.error("optim_args", f"has {strange}, which {name} does not take")
    return {key: value for key, value in pairs.items() if key in row.defaults}


def _pairs(keys: Keys, text: str) -> dict[str, Any]:
    from memcalc.records.values import scalar

    parts = [part.partition("=") for part in text.replace(" ", "").split(",") if part]
    if not all(equals for _, equals, _ in parts):
        raise keys.error("optim_args", "is not understood", "write name=value,name=value")
    return {name: scalar(value) for name, _, value in parts}


def _evaluation(keys: Keys, batch: int) -> None:
    """Note evaluation in larger batches than those of training."""
    evaluates = str(keys.get("eval_strategy", "evaluation_strategy") or "no").lower() != "no"
    if evaluates:
        size = keys.count("per_device_eval_batch_size", "per_gpu_eval_batch_size") or 8
        if size > batch:
            keys.unread.append(f"evaluation in batches of {size}")
    if evaluates and keys.flag("predict_with_generate"):
        keys.unread.append("evaluation that generates")
    keys.get("predict_with_generate", "generation_max_length")
    keys.get("generation_num_beams", "generation_config")


def spread_over(keys: Keys, given: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Read how a run is spread over GPUs, also from files that are named.

    Returns:
        Settings of a plan, and what is not counted.
    """
    folder = Path(keys.file).expanduser().parent
    asked = {key: keys.get(key) for key in ("deepspeed", "fsdp", "fsdp_config")}
    if asked["deepspeed"]:
        config, name = _table(keys, "deepspeed", folder)
        said = deepspeed.read({**config, **_halves(keys, config)}, name, given)
    elif asked["fsdp"] or asked["fsdp_config"]:
        config, name = _table(keys, "fsdp_config", folder)
        half = next((one for one in ("bf16", "fp16") if keys.get(one)), "no")
        table = _fsdp(asked["fsdp"], config)
        whole = {"distributed_type": "FSDP", "mixed_precision": half, "fsdp_config": table}
        said = accelerate.read(whole, name, given)
    else:
        told = {name: keys.get(f"ddp_{name}") for name in _DDP}
        told = {name: value for name, value in told.items() if isinstance(value, int | bool)}
        return ({"parallel": "ddp", "parallel_args": told} if told else {}), ()
    for name in _DDP:
        keys.get(f"ddp_{name}")
    left = {key: one for key, one in said.settings.items() if key not in ("precision", "devices")}
    return left, said.unread


def _halves(keys: Keys, config: Mapping[str, Any]) -> dict[str, Any]:
    """Fill in what a file of DeepSpeed leaves to the Trainer's precision."""
    return {
        name: {**config[name], "enabled": bool(keys.get(name))}
        for name in ("bf16", "fp16")
        if isinstance(config.get(name), dict) and config[name].get("enabled") == deepspeed.AUTO
    }


def _table(keys: Keys, key: str, folder: Path) -> tuple[dict[str, Any], str]:
    """Return the table under a key or in the file that is named there, and its name."""
    value = keys.get(key)
    if value is None:
        return {}, keys.file
    if isinstance(value, str):
        # Frameworks look from where they run; people write it from where the file is, or above.
        above = (Path(), folder, *list(folder.absolute().parents)[:3])
        place = next((one / value for one in above if (one / value).is_file()), None)
        if place is None:
            raise UsageError(f"{keys.file}: {key} = {value}: there is no such file.")
        return dict(mapping(place)), value
    if not isinstance(value, dict):
        raise keys.error(key, "is neither a file nor a table", "correct it")
    return {str(name): one for name, one in value.items()}, f"{keys.file}, {key}"


def _fsdp(words: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keys that accelerate has for what ``fsdp`` and ``fsdp_config`` say."""
    keys = {key.removeprefix("fsdp_"): value for key, value in config.items()}
    listed = words.split() if isinstance(words, str) else words if isinstance(words, list) else []
    strategy = next((str(word) for word in listed if word in _STRATEGIES), None)
    keys.setdefault("version", 2)
    keys.setdefault("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    keys.setdefault("min_num_params", 0)
    again = keys.pop("reshard_after_forward", strategy or "full_shard")
    if keys["version"] == _FIRST:
        keys.setdefault("sharding_strategy", str(again).upper())
    else:
        named = again in _STRATEGIES
        keys["reshard_after_forward"] = again != "shard_grad_op" if named else again
        keys.pop("forward_prefetch", None)
    if keys.pop("cpu_offload", False) or "offload" in listed:
        keys["offload_params"] = True
    ours = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "limit_all_gathers")
    return {key: value for key, value in keys.items() if key not in ours}


_OPTIMIZERS = {
    "adamw8bit": "adamw_8bit",
    "pagedadamw8bit": "paged_adamw_8bit",
    "pagedadamw": "paged_adamw_32bit",
    "transformers.adafactor": "adafactor",
    "sgd": "sgd",
    "lion8bit": "lion_8bit",
    "lion": "lion_32bit",
    "rmsprop": "rmsprop",
}
"""Rows of the registry by their names in transformers' ``OptimizerNames`` (training_args.py, 5.23);
its adafactor is not torch's."""


def optimizer_name(plan: Plan) -> str | None:
    """Return the Trainer's name for the plan's optimizer; None: it has none."""
    if plan.optim == "adamw":
        return "adamw_torch_fused" if dict(plan.optim_args).get("fused") else "adamw_torch"
    row = registry.of(plan).row.name
    return row if row.startswith("adamw_torch") else _OPTIMIZERS.get(row)


def half(plan: Plan) -> str:
    """Return the half precision of a plan that computes in one."""
    return "fp16" if "fp16" in plan.precision else "bf16"


def write(plan: Plan) -> dict[str, Any]:
    """Write a plan as TrainingArguments; what these have no word for is left out."""
    named = optimizer_name(plan)
    return {
        "per_device_train_batch_size": plan.batch,
        "gradient_accumulation_steps": plan.grad_accum,
        **({half(plan): True} if "amp" in plan.precision else {}),
        **({"gradient_checkpointing": True} if plan.checkpointing else {}),
        **variant(plan),
        **({"use_liger_kernel": True} if plan.liger else {}),
        **({"torch_compile": True, "torch_compile_mode": plan.compile} if plan.compile else {}),
        **({"optim": named} if named else {}),
        **_sharded(plan),
    }


def _sharded(plan: Plan) -> dict[str, Any]:
    if plan.devices == 1 or plan.parallel not in ("fsdp1", "fsdp2"):
        return {}
    told = {"version": int(plan.parallel[-1]), **dict(plan.parallel_args)}
    return {"fsdp": True, "fsdp_config": told}
