"""Writes a plan as the training script that it stands for, as a person would write it.

The script runs on a GPU as it is, and simulating it takes what the plan takes: that is how an
estimate is checked on a card. A setting that no script here expresses is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from memcalc import registry
from memcalc.advice.suggest.snippets import bitsandbytes_arguments, lora_config
from memcalc.catalog import models
from memcalc.catalog.models import ModelSource
from memcalc.catalog.positions import lengths
from memcalc.catalog.quantised import BITSANDBYTES
from memcalc.dialects import trainer
from memcalc.errors import UsageError
from memcalc.records.names import AUTOCAST_DTYPES, WEIGHT_DTYPES
from memcalc.records.plan import Plan
from memcalc.registry.build_arguments import LEARNING_RATE, arguments_of
from memcalc.workload import layouts, loops, tasks
from memcalc.workload.tasks import Head

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
    "loss_chunks": "--loss-chunks",
    "liger": "--liger",
    "compile": "--compile",
    "freeze": "--freeze",
    "autocast_adapter_dtype": "--no-autocast-adapter-dtype",
    "alloc_conf": "--alloc-conf",
    "optim_in_backward": "--optim-in-backward",
    "resume": "--resume",
    "engine": "--engine",
    "inputs": "--input",
    "kv_cache": "--kv-cache",
    "inference": "--inference",
    "cache": "--cache",
    "beams": "--beams",
}
"""Fields of a plan that no script expresses, with their options."""


def write(plan: Plan) -> str:
    """Return the text of the script.

    Raises:
        UsageError: no script expresses a setting of the plan.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    source = models.find(plan.model)
    head = tasks.choose(source, plan.task)
    _check(plan, source, head)
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    template = templates.get_template("train.py.j2")
    imports: set[str] = set()
    values = {**_values(plan, source.config or {}, head), "use": imports.add}
    # The first time to find its imports.
    if "torch." in template.render(values, imports=[], versions=""):
        imports.add("import torch")
    known = sorted(imports, key=lambda line: (line != "import torch", line.split()[1], line))
    return template.render(values, imports=known)


def _check(plan: Plan, source: ModelSource, head: Head) -> None:
    for field, option in _LEFT_OUT.items():
        if getattr(plan, field) != getattr(_PLAIN, field):
            raise UsageError(f"A script has no words for {option} yet: leave it out.")
    if plan.attention not in ("auto", "sdpa", "eager"):
        raise UsageError(
            f"A script has no words for --attention {plan.attention} yet: leave it out."
        )
    layout = layouts.of(plan).name
    if layout not in _LAYOUTS or (layout == "fsdp2" and (plan.loop != "plain" or plan.adapters)):
        raise UsageError(
            f"A script of the {plan.loop} loop has no words for --parallel {plan.parallel} yet: "
            "choose ddp, or fsdp2 without adapters in the plain loop."
        )
    if layout == "fsdp2" and "amp" in plan.precision:
        raise UsageError(
            "A script has no words for mixed precision under fsdp2 yet: choose --precision bf16 or "
            "fp32, or --parallel ddp."
        )
    if source.factory is not None or head.task.name not in _TASKS:
        raise UsageError(f"A script is written for {', '.join(_TASKS)}: {plan.model} is not.")
    if plan.scheme is not None and plan.scheme not in BITSANDBYTES:
        raise UsageError("A script quantizes by bitsandbytes: choose --quant nf4, fp4 or int8.")
    if plan.generate is not None and plan.scheme is not None:
        raise UsageError("A script generates with weights as they are: leave --quant out.")
    if layout == "ddp" and plan.grad_accum > 1 and plan.loop == "plain" and not plan.infers:
        raise UsageError("A script has no words for --grad-accum with ddp yet.")
    if layout == "fsdp2" and plan.parallel_args:
        raise UsageError("A script has no words for --parallel-arg with fsdp2 yet.")


def _values(plan: Plan, config: Mapping[str, Any], head: Head) -> dict[str, Any]:
    """Return what the template is filled with."""
    layout, loop, choice = layouts.of(plan).name, loops.of(plan), registry.of(plan)
    weights = WEIGHT_DTYPES.get(plan.precision, "float32")
    autocast = AUTOCAST_DTYPES.get(plan.precision, "")
    places = plan.loop != "trainer" and layout != "fsdp2"
    casts = [] if weights == "float32" else [f"torch.{weights}"]
    module, _, name = choice.row.implementation.rpartition(".")
    settings = {"lr": LEARNING_RATE, **arguments_of(choice)}
    given = [
        f"{key}=torch.{value}" if key.endswith("_dtype") else f"{key}={_literal(value)}"
        for key, value in settings.items()
    ]
    is_own = module == "torch.optim"
    versions = [f"{one} {found}" for one in ("torch", "transformers") if (found := _version(one))]
    reentrant = f'gradient_checkpointing_kwargs={{"use_reentrant": {plan.use_reentrant}}}'
    return {
        "plan": plan,
        "layout": layout,
        "head": head,
        "config": config,
        "steps": STEPS,
        "weights": weights,
        "autocast": autocast,
        "half": {"float16": "fp16", "bfloat16": "bf16"}.get(autocast, "no"),
        "scales": plan.precision == "amp-fp16",
        "joins": layout != "single" and plan.loop == "plain",
        "loading": list(_loading(plan, config, head)),
        # Buffers are cast as well.
        "moves": [*(['"cuda"'] if places else []), *casts] if plan.scheme is None else [],
        "prepares": plan.scheme is not None and plan.kbit_prepare,
        "variant": [] if plan.use_reentrant is None else [reentrant],
        "adapters": lora_config(plan.adapters).replace("'", '"') if plan.adapters else "",
        "wrapper": [f"{name}={value!r}" for name, value in plan.parallel_args],
        "tensors": _tensors(plan, config, head),
        "place_of_padding": "-1" if plan.generate is None else "0" if plan.padding else "",
        "optimizer": f"{'torch.optim.' if is_own else ''}{name}(trained, {', '.join(given)})",
        "optimizer_import": "" if is_own else f"from {module} import {name}",
        "trainer_arguments": [
            f"{key}={_literal(value)}" for key, value in trainer.write(plan).items()
        ]
        if plan.loop == "trainer"
        else [],
        "norm": loop.clip_to(plan),
        "keep_outputs": loop.keep_outputs(plan),
        "versions": " and ".join(versions),
    }


def _loading(plan: Plan, config: Mapping[str, Any], head: Head) -> Iterator[str]:
    """Yield the arguments of ``from_pretrained``."""
    if head.task.num_labels is not None:
        yield f"num_labels={head.task.num_labels}"
    if head.task.by_last_token and config.get("pad_token_id") is None:
        yield "pad_token_id=0"
    if plan.attention == "eager":
        yield 'attn_implementation="eager"'
    if plan.scheme is not None:
        settings = ", ".join(bitsandbytes_arguments(plan))
        yield f"quantization_config=BitsAndBytesConfig({settings})"
        yield 'device_map={"": 0}'


def _tensors(plan: Plan, config: Mapping[str, Any], head: Head) -> dict[str, str]:
    """Return the tensors of a batch by name, as Python."""
    task, batch = head.task, plan.batch
    place = "" if plan.loop == "trainer" else ', device="cuda"'
    text, known = config.get("text_config"), lengths(dict(config))
    size = (text if isinstance(text, dict) else config).get("vocab_size")
    vocabulary = size if isinstance(size, int) else 1000
    seq = int(known.exact or plan.seq or known.default)
    found: dict[str, str] = {}
    if task.name == "image-classification":
        size = config.get("image_size") or 224
        height, width = size if isinstance(size, list) else (size, size)
        shape = f"{batch}, {config.get('num_channels') or 3}, {height}, {width}"
        found["pixel_values"] = f"torch.randn({shape}{place})"
    else:
        found["input_ids"] = f"torch.randint(1, {vocabulary}, ({batch}, {seq}){place})"
        is_padded = not task.packed if plan.padding is None else plan.padding
        if is_padded or plan.generate is not None:
            found["attention_mask"] = "torch.ones_like(input_ids)"
    for name in () if plan.infers else task.labels:
        count = seq if task.labelled is None else task.labelled
        most = vocabulary if task.vocabulary or count else 2
        if count and task.name == "token-classification":
            most = 2
        shape = f"({batch}, {count})" if count else f"({batch},)"
        found[name] = f"torch.randint({most}, {shape}{place})"
    return found


def _literal(value: Any) -> str:
    """Return a setting as Python, with double quotes."""
    return repr(value).replace("'", '"')


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
