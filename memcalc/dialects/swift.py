"""ms-swift's arguments, as YAML or JSON, or as a command ``swift sft`` in a shell script.

Source: ms-swift 4.6.0 (3602360), ``swift/arguments``, ``swift/trainers/arguments.py`` and
``swift/config``: the model is loaded in bfloat16 unless another type is asked for, adapters and
what else is trained are in fp32 under autocast of it.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.dialects import trainer
from memcalc.dialects.format import read_format
from memcalc.dialects.recipe import Keys, Recipe, make_verb_error
from memcalc.dialects.weights import write_lora, write_quant
from memcalc.records.names import WEIGHT_DTYPES, ZERO_STAGES
from memcalc.records.plan import Plan

NAME = "ms-swift"
_BATCH = 16
"""Samples of a step that accumulation fills up to where the file names no number of steps."""
_OFFLOADED = {2: ("offload_optimizer",), 3: ("offload_optimizer", "offload_param")}


def is_one(data: Mapping[str, Any]) -> bool:
    """Return True if a table has the keys of ms-swift's arguments."""
    named = "model" in data or "model_id_or_path" in data
    return named and any(key in data for key in read_format("swift").marks.split())


def read(data: Mapping[str, Any], file: str, given: Mapping[str, Any]) -> Recipe:
    """Read ms-swift's arguments as settings of a plan.

    Raises:
        UsageError: a key asks for what memcalc does not answer, or is none.
    """
    verb = data.get("swift_command", "rlhf" if data.get("rlhf_type") else "sft")
    if verb not in ("sft", "pt"):
        raise make_verb_error(file, f"swift {verb} {file}", f"swift {verb}")
    if isinstance(variables := data.get("ENV"), dict):
        # They are set before it starts.
        data = {**data, **variables}
    keys = Keys(data, file, NAME, read_format("swift"))
    kind = keys.text("tuner_type", "train_type", "sft_type")
    if kind not in ("full", "lora"):
        raise keys.error("tuner_type", "trains what a plan has no words for")
    keys = keys.view({**data, "tuner_type": kind})
    if keys.get("task_type") not in (None, "causal_lm"):
        raise keys.error("task_type", "has another head")
    devices = keys.count("NPROC_PER_NODE", "nproc_per_node")
    visible = len(str(keys.get("CUDA_VISIBLE_DEVICES") or "").split(","))
    if visible > (devices or 1) and "accelerate_config" not in data:
        raise keys.error("CUDA_VISIBLE_DEVICES", "are more GPUs than processes, which divides the "
                         "layers among them", "set NPROC_PER_NODE to their number")  # fmt: skip
    nodes = keys.count("NNODES", "nnodes") or 1
    devices = devices and devices * nodes
    spread = keys.view(_replace_launcher_names(keys))
    found = trainer.read_arguments(spread, {**given, "devices": devices or given.get("devices")})
    keys.get("bnb_4bit_compute_dtype")
    in_4bit = found.get("quant") not in (None, "int8")
    devices = devices or found.get("devices")
    samples = found.get("batch", 1) * (devices or 1)
    found |= {
        "devices": devices,
        "grad_accum": found.get("grad_accum") or -(-_BATCH // samples),
        "precision": _read_precision(keys, str(keys.text("torch_dtype")), kind),
        "bnb_4bit_compute_dtype": keys.text("bnb_4bit_compute_dtype") if in_4bit else None,
        "alloc_conf": keys.text("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"),
    }
    if keys.flag("use_logits_to_keep", default=True):
        keys.unread.append("that logits are made from the answer's first token on")
    return keys.recipe(found)


def _replace_launcher_names(keys: Keys) -> dict[str, Any]:
    """Expand ms-swift's short names for DeepSpeed and FSDP settings (``swift/config``)."""
    data = dict(keys.data)
    name, _, offload = str(data.get("deepspeed")).partition("_")
    if name == "zero0":
        del data["deepspeed"]
    elif name in ("zero1", "zero2", "zero3") and offload in ("", "offload"):
        stage = int(name[-1])
        parts = {key: {"device": "cpu"} for key in _OFFLOADED.get(stage, ()) if offload}
        halves = {half: {"enabled": "auto"} for half in ("bf16", "fp16")}
        data["deepspeed"] = {"zero_optimization": {"stage": stage, **parts}, **halves}
    if data.get("fsdp") == "fsdp2":
        config = {"fsdp_version": 2, "activation_checkpointing": True}
        data |= {"fsdp": True, "fsdp_config": config}
        data.setdefault("gradient_checkpointing", False)
    if not any(key in data for key in ("bf16", "fp16")):
        half = {"bfloat16": "bf16", "float16": "fp16"}.get(str(keys.get("torch_dtype")))
        data |= {half: True} if half else {}
    return data


def _read_precision(keys: Keys, weights: str, kind: str) -> str:
    asked = [name for name in ("bf16", "fp16") if keys.flag(name)]
    if weights == "float32":
        return f"amp-{asked[0]}" if asked else "amp-fp16" if kind == "full" else "fp32"
    if weights == "float16":
        keys.unread.append(trainer.OVER_FP16)
        return "fp16"
    return "bf16+amp"


def write(plan: Plan) -> dict[str, Any]:
    """Return a plan as ms-swift's arguments, without settings it cannot express."""
    form = read_format("swift")
    arguments = trainer.write(plan)
    for name in ("bf16", "fp16", "fsdp_config"):
        if not plan.precision.startswith("amp-") or name == "fsdp_config":
            arguments.pop(name, None)
    return {
        "model": plan.model,
        **arguments,
        "gradient_checkpointing": plan.checkpointing,
        **write_lora(form, plan),
        "torch_dtype": WEIGHT_DTYPES.get(plan.precision, "float32"),
        **write_quant(form, plan),
        **({"bnb_4bit_compute_dtype": plan.bnb_4bit_compute_dtype}
           if plan.bnb_4bit_compute_dtype else {}),
        **({"max_length": plan.seq} if plan.seq else {}),
        **({"deepspeed": f"zero{ZERO_STAGES[plan.parallel]}"}
           if plan.devices > 1 and plan.parallel in ZERO_STAGES else {}),
    }  # fmt: skip
