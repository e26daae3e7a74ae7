"""Writes a plan as a training script, as a person would write it; the text is a template.

The script runs on a GPU unchanged, and simulating it takes the plan's memory: so an estimate is
checked on a card. A setting that the template cannot express is an error that names it.
"""

from typing import Any

from memcalc.advice.suggest.snippets import lora_config, quantized_loading
from memcalc.catalog.quantized import BITSANDBYTES
from memcalc.dialects import trainer
from memcalc.errors import UsageError
from memcalc.estimation.question import ResolvedPlan
from memcalc.files import templates
from memcalc.records.plan import Plan
from memcalc.registry.build_arguments import LEARNING_RATE, list_arguments
from memcalc.version import find_version

STEPS = 4
"""Optimizer steps of a script: state is made in the first, and all that follow are alike."""
_TASKS = (
    *("causal-lm", "image-classification", "masked-lm", "question-answering", "seq2seq-lm"),
    *("sequence-classification", "token-classification"),
)
_LAYOUTS = ("single", "ddp", "fsdp2")
_PLAIN = Plan()
_LEFT_OUT: dict[str, str] = {
    "checkpoint_every": "--checkpoint-every",
    "recompute": "--recompute",
    "offload_activations": "--offload-activations",
    "loss_chunks": "--loss-chunks",
    "liger": "--liger",
    "float8": "--float8",
    "compile": "--compile",
    "freeze": "--freeze",
    "autocast_adapter_dtype": "--no-autocast-adapter-dtype",
    "optim_in_backward": "--optim-in-backward",
    "resume": "--resume",
    "engine": "--engine",
    "inputs": "--input",
    "inference": "--inference",
    "cache": "--cache",
    "beams": "--beams",
}
"""Fields of a plan that no script expresses, with their options."""
_DTYPES = {
    "fp32": ("float32", ""),
    "tf32": ("float32", ""),
    "amp-fp16": ("float32", "float16"),
    "amp-bf16": ("float32", "bfloat16"),
    "bf16+amp": ("bfloat16", "bfloat16"),
    "bf16": ("bfloat16", ""),
    "fp16": ("float16", ""),
}
"""Types of the weights and of autocast, empty: none."""


def write(question: ResolvedPlan) -> str:
    """Return the text of a Python training script that does what the plan says.

    Raises:
        UsageError: no script expresses a setting of the plan.
    """
    _check_expressible(question)
    variables = _variables(question)
    return templates.render("train.py.j2", {"literal": _write_literal}, **variables)


def _check_expressible(question: ResolvedPlan) -> None:
    """Raise UsageError for a setting of the plan that no script expresses yet."""
    plan, layout = question.plan, question.layout.name
    for field, option in _LEFT_OUT.items():
        if getattr(plan, field) != getattr(_PLAIN, field):
            raise UsageError(f"A script has no words for {option} yet: leave it out.")
    if plan.attention not in ("auto", "sdpa", "eager"):
        raise UsageError(
            f"A script has no words for --attention {plan.attention} yet: leave it out."
        )
    if layout not in _LAYOUTS or (layout == "fsdp2" and (plan.loop != "plain" or plan.adapters)):
        raise UsageError(
            f"A script of the {plan.loop} loop has no words for --parallel {plan.parallel} yet: "
            "choose ddp, or fsdp2 without adapters in the plain loop."
        )
    if layout == "fsdp2" and plan.parallel_args:
        raise UsageError("A script has no words for --parallel-arg with fsdp2 yet.")
    if layout == "ddp" and plan.loop == "plain" and plan.grad_accum > 1:
        raise UsageError("A script has no words for --grad-accum with ddp yet.")
    if layout == "fsdp2" and "amp" in plan.precision:
        raise UsageError(
            "A script has no words for mixed precision under fsdp2 yet: choose --precision bf16 or "
            "fp32, or --parallel ddp."
        )
    if question.source.factory is not None or question.head.name not in _TASKS:
        raise UsageError(f"A script is written for {', '.join(_TASKS)}: {plan.model} is not.")
    if plan.scheme is not None and plan.scheme not in BITSANDBYTES:
        raise UsageError("A script quantizes by bitsandbytes: choose --quant nf4, fp4 or int8.")
    saved = question.source.was_saved_by(question.head.class_name)
    if plan.scheme is not None and not (saved or question.head.task.vocabulary):
        raise UsageError("A script has no words for a new head over a quantized base yet.")
    if plan.kv_cache and plan.loop == "trainer":
        raise UsageError(
            "A script of the trainer loop has no words for --kv-cache yet: leave it out."
        )
    own = question.choice.row.package == "bitsandbytes" and not _is_named(plan)
    if plan.loop == "trainer" and own:
        raise UsageError(
            f"A script of the trainer loop has no words for --optim {plan.optim} with its "
            f"arguments: choose one that the Trainer names, such as {', '.join(trainer.NAMED)}."
        )
    if plan.generate is not None and plan.scheme is not None:
        raise UsageError("A script generates with weights as they are: leave --quant out.")


def _variables(question: ResolvedPlan) -> dict[str, Any]:
    """Return the variables of the template ``train.py.j2``."""
    plan, loop, layout = question.plan, question.loop, question.layout.name
    name, padding = question.head.class_name, (question.source.config or {}).get("pad_token_id")
    weights, autocast = _DTYPES[plan.precision]
    cast = [] if weights == "float32" else [f"torch.{weights}"]
    placed = ['"cuda"'] if plan.loop != "trainer" and layout != "fsdp2" else []
    loader = "AutoConfig, " if layout == "fsdp2" else ""
    tensors, loading = _write_batch_tensors(question), _list_loading_arguments(question)
    optimizer, more = ("", {}) if plan.infers or _is_named(plan) else _write_optimizer(question)
    return {
        "plan": plan,
        "layout": layout,
        "starts_group": layout != "single" and plan.loop == "plain",
        "steps": STEPS,
        "versions": [f"{one} {find_version(one)}" for one in ("torch", "transformers")],
        "class_name": name,
        "weights": weights,
        "autocast": autocast,
        "scaled": plan.precision == "amp-fp16" and plan.loop == "plain",
        "loading": [*loading, *quantized_loading(plan)],
        "moved": [] if plan.scheme else [*placed, *cast],
        "prepared": plan.scheme is not None and plan.kbit_prepare,
        "adapters": lora_config(plan.adapters).replace("'", '"') if plan.adapters else "",
        "options": [f"{key}={value!r}" for key, value in plan.parallel_args],
        "tensors": tensors,
        "has_padding_token": padding is not None,
        "optimizer": optimizer,
        "norm": loop.clip_to(plan),
        "keeps_outputs": loop.keep_outputs(plan),
        "trainer": _list_trainer_arguments(question) if plan.loop == "trainer" else {},
        "imports": {
            "os.environ": "import os",
            "Accelerator(": "from accelerate import Accelerator",
            **more,
            "LoraConfig(": "from peft import LoraConfig, get_peft_model",
            "prepare_model_for_kbit": "from peft import prepare_model_for_kbit_training",
            "fully_shard(": "from torch.distributed.fsdp import fully_shard",
            "DistributedDataParallel(": "from torch.nn.parallel import DistributedDataParallel",
            f"{name}{'(' if loader else '.'}": f"from transformers import {loader}{name}",
            "BitsAndBytesConfig(": "from transformers import BitsAndBytesConfig",
            "TrainingArguments(": "from transformers import Trainer, TrainingArguments",
        },
    }


def _is_named(plan: Plan) -> bool:
    """Return True if the Trainer makes the plan's optimizer by a name in its arguments."""
    more = {name for name, _ in plan.optim_args} - {"fused", "weight_decay"}
    return plan.loop == "trainer" and trainer.optimizer_name(plan) is not None and not more


def _list_trainer_arguments(question: ResolvedPlan) -> dict[str, Any]:
    """Return the arguments of ``TrainingArguments``."""
    plan, decay = question.plan, question.choice.given.get("weight_decay")
    evaluates = {
        "eval_strategy": "steps",
        "eval_steps": STEPS,
        "per_device_eval_batch_size": plan.batch,
    }
    return {
        "output_dir": "out",
        "max_steps": STEPS,
        **trainer.write(plan),
        **({"weight_decay": decay} if decay else {}),
        **(evaluates if plan.eval else {}),
        "save_strategy": "no",
        "report_to": "none",
    }


def _list_loading_arguments(question: ResolvedPlan) -> list[str]:
    """Return ``from_pretrained``'s arguments for a head as Python code."""
    task, config = question.head.task, question.source.config or {}
    found = []
    if task.num_labels is not None:
        found.append(f"num_labels={task.num_labels}")
    if task.by_last_token and config.get("pad_token_id") is None:
        found.append("pad_token_id=0")
    if question.plan.attention == "eager":
        found.append('attn_implementation="eager"')
    return found


def _write_batch_tensors(question: ResolvedPlan) -> dict[str, str]:
    """Return Python code that makes each tensor of a random batch, by tensor name."""
    plan, task, config = question.plan, question.head.task, question.source.config or {}
    place = "" if plan.loop == "trainer" else ', device="cuda"'
    seq = int(question.lengths.exact or plan.seq or question.lengths.default)
    text = config.get("text_config")
    size = (text if isinstance(text, dict) else config).get("vocab_size")
    vocabulary = size if isinstance(size, int) else 1000
    found = {}
    if task.name == "image-classification":
        size = config.get("image_size") or 224
        height, width = size if isinstance(size, list) else (size, size)
        shape = f"{plan.batch}, {config.get('num_channels') or 3}, {height}, {width}"
        found["pixel_values"] = f"torch.randn({shape}{place})"
    else:
        found["input_ids"] = f"torch.randint(1, {vocabulary}, ({plan.batch}, {seq}){place})"
        if plan.generate or (not task.packed if plan.padding is None else plan.padding):
            found["attention_mask"] = "torch.ones_like(input_ids)"
    for name in () if plan.infers else task.labels:
        count = seq if task.labelled is None else task.labelled
        shape = f"({plan.batch}, {count})" if count else f"({plan.batch},)"
        many = (task.vocabulary or count) and task.name != "token-classification"
        found[name] = f"torch.randint({vocabulary if many else 2}, {shape}{place})"
    return found


def _write_optimizer(question: ResolvedPlan) -> tuple[str, dict[str, str]]:
    """Return Python code that makes the optimizer, and the import it needs.

    It is a call of the constructor; for the Trainer, which makes groups of parameters itself, it is
    the class and its arguments.
    """
    choice, trains = question.choice, question.plan.loop == "trainer"
    module, _, name = choice.row.implementation.rpartition(".")
    own = module == "torch.optim"
    called = f"torch.optim.{name}" if own else name
    settings = {"lr": LEARNING_RATE, **list_arguments(choice)}
    shown = {
        key: f"torch.{value}" if key.endswith("_dtype") else _write_literal(value)
        for key, value in settings.items()
    }
    if trains:
        shown.pop("weight_decay", None)  # It has a name in the Trainer's own arguments.
        arguments = ", ".join(f'"{key}": {value}' for key, value in shown.items())
        made = f"({called}, {{{arguments}}})"
    else:
        made = f"{called}(trained, {', '.join(f'{key}={value}' for key, value in shown.items())})"
    used = f"({name}," if trains else f"{name}("
    return made, {} if own else {used: f"from {module} import {name}"}


def _write_literal(value: Any) -> str:
    """Return a setting as Python, with double quotes."""
    return repr(value).replace("'", '"')
