"""Writes a plan as the training script that it stands for, as a person would write it.

The script runs on a GPU as it is, and simulating it takes what the plan takes: that is how an
estimate is checked on a card. A setting that no script here expresses is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version

from memcalc.advice.script_loops import Loops
from memcalc.advice.suggest.snippets import bitsandbytes_arguments, lora_config
from memcalc.catalog import models
from memcalc.catalog.models import ModelSource
from memcalc.catalog.quantized import BITSANDBYTES
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.workload import layouts, tasks
from memcalc.workload.tasks import Head

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
    source = models.find(plan.model)
    head = tasks.choose(source, plan.task)
    _check(plan, source, head)
    script = _Script(plan, source, head)
    body = [*script.setup(), *script.model(), *script.batches(), *script.run()]
    imports = sorted(script.imports - {"import torch"}, key=lambda line: (line.split()[1], line))
    needs_torch = any("torch." in line for line in body)
    lines = [
        *script.docstring(),
        "",
        *(["import torch"] if needs_torch else []),
        *imports,
        "",
        *body,
    ]
    return "\n".join(lines) + "\n"


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


class _Script(Loops):
    """Writes a script: what stands before its loop."""

    def docstring(self) -> Iterator[str]:
        """Say what is trained, by which versions, and how to start it."""
        plan = self._plan
        does = f"Generate {plan.generate} tokens with" if plan.generate else "Train"
        yield f'"""{does} {plan.model}, as memcalc estimates it; data are random.'
        yield ""
        found = [f"{name} {one}" for name in ("torch", "transformers") if (one := _version(name))]
        yield f"Estimated with {' and '.join(found)}."
        start = f"torchrun --nproc-per-node {plan.devices}" if plan.devices > 1 else "python"
        yield f"Start it with: {start} train.py"
        yield '"""'

    def setup(self) -> Iterator[str]:
        """Settings of the process."""
        plan = self._plan
        if plan.precision == "tf32":
            yield "torch.backends.cuda.matmul.allow_tf32 = True"
        if not plan.cudnn_attention:
            yield "torch.backends.cuda.enable_cudnn_sdp(False)"
        if plan.cudnn_benchmark:
            yield "torch.backends.cudnn.benchmark = True"
        if self._layout != "single" and plan.loop == "plain":
            self.imports.add("import os")
            yield 'local_rank = int(os.environ["LOCAL_RANK"])'
            yield "torch.cuda.set_device(local_rank)"
            yield 'torch.distributed.init_process_group("nccl")'
        if plan.loop == "accelerate":
            self.imports.add("from accelerate import Accelerator")
            mixed = {"float16": '"fp16"', "bfloat16": '"bf16"'}.get(self._autocast, '"no"')
            accumulates = f", gradient_accumulation_steps={plan.grad_accum}"
            more = accumulates if plan.grad_accum > 1 else ""
            yield f"accelerator = Accelerator(mixed_precision={mixed}{more})"

    # ---- the model

    def model(self) -> Iterator[str]:
        """Load the model, quantized, with adapters and checkpointing as the plan says."""
        plan, name = self._plan, self._head.class_name
        if self._layout == "fsdp2":
            yield from self._without_memory(name)
        else:
            self.imports.add(f"from transformers import {name}")
            told = [f'"{plan.model}"', f"dtype=torch.{self._weights}", *self._loading()]
            yield f"model = {name}.from_pretrained("
            yield from (f"    {one}," for one in told)
            yield ")"
        yield from self._moved()
        yield from self._prepared()
        yield from self._adapters()
        prepared = plan.scheme is not None and plan.kbit_prepare
        if plan.checkpointing and plan.loop != "trainer" and not prepared:
            told_variant = ", ".join(f"{key}={value}" for key, value in self._variant().items())
            yield f"model.gradient_checkpointing_enable({told_variant})"
            if plan.adapters is not None and plan.use_reentrant is not False:
                yield "model.enable_input_require_grads()"
        yield f"model.{'eval' if plan.infers else 'train'}()"
        if plan.loop == "plain":
            yield from self._spread()

    def _without_memory(self, name: str) -> Iterator[str]:
        """Make the model without memory: its shards get theirs, and a checkpoint fills them."""
        self.imports.add(f"from transformers import AutoConfig, {name}")
        told = [f'"{self._plan.model}"', *self._loading()]
        yield f"config = AutoConfig.from_pretrained({', '.join(told)})"
        yield 'with torch.device("meta"):'
        yield f"    model = {name}(config)"

    def _moved(self) -> Iterator[str]:
        plan = self._plan
        # Buffers are cast as well.
        cast = "" if self._weights == "float32" else f"torch.{self._weights}"
        places = plan.scheme is None and plan.loop != "trainer" and self._layout != "fsdp2"
        told = ", ".join(filter(None, ('"cuda"' if places else "", cast)))
        if told and plan.scheme is None:
            yield f"model.to({told})"

    def _prepared(self) -> Iterator[str]:
        plan = self._plan
        if plan.scheme is None or not plan.kbit_prepare:
            return
        self.imports.add("from peft import prepare_model_for_kbit_training")
        told = [f"use_gradient_checkpointing={plan.checkpointing}"]
        told += [f"{key}={value}" for key, value in self._variant().items()]
        yield f"model = prepare_model_for_kbit_training(model, {', '.join(told)})"

    def _variant(self) -> dict[str, str]:
        """Return the variant of checkpointing that the plan names, as an argument."""
        if self._plan.use_reentrant is None:
            return {}
        return {"gradient_checkpointing_kwargs": f'{{"use_reentrant": {self._plan.use_reentrant}}}'}

    def _loading(self) -> Iterator[str]:
        plan, task = self._plan, self._head.task
        if task.num_labels is not None:
            yield f"num_labels={task.num_labels}"
        if task.by_last_token and self._config.get("pad_token_id") is None:
            yield "pad_token_id=0"
        if plan.attention == "eager":
            yield 'attn_implementation="eager"'
        if plan.scheme is not None:
            self.imports.add("from transformers import BitsAndBytesConfig")
            settings = ", ".join(bitsandbytes_arguments(plan))
            yield f"quantization_config=BitsAndBytesConfig({settings})"
            yield 'device_map={"": 0}'

    def _adapters(self) -> Iterator[str]:
        if self._plan.adapters is None:
            return
        self.imports.add("from peft import LoraConfig, get_peft_model")
        config = lora_config(self._plan.adapters).replace("'", '"')
        yield f"adapters = {config}"
        yield "model = get_peft_model(model, adapters)"

    def _spread(self) -> Iterator[str]:
        options = ", ".join(f"{name}={value!r}" for name, value in self._plan.parallel_args)
        if self._layout == "ddp":
            self.imports.add("from torch.nn.parallel import DistributedDataParallel")
            more = f", {options}" if options else ""
            yield f"model = DistributedDataParallel(model, device_ids=[local_rank]{more})"
        if self._layout == "fsdp2":
            if self._plan.parallel_args:
                raise UsageError("A script has no words for --parallel-arg with fsdp2 yet.")
            self.imports.add("from torch.distributed.fsdp import fully_shard")
            yield "for module in model.modules():"
            yield "    if type(module).__name__ in model._no_split_modules:"
            yield "        fully_shard(module)"
            yield "fully_shard(model)"
            yield 'model.to_empty(device="cuda")'
            yield "model.tie_weights()"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
