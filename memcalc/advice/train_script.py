"""Writes a plan as the training script that it stands for, as a person would write it.

The script runs on a GPU as it is, and simulating it takes what the plan takes: that is how an
estimate is checked on a card. A setting that no script here expresses is an error that names it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from memcalc import registry
from memcalc.catalog import models
from memcalc.catalog.models import ModelSource
from memcalc.catalog.positions import lengths
from memcalc.catalog.quantised import BITSANDBYTES
from memcalc.dialects import trainer
from memcalc.errors import UsageError
from memcalc.records.plan import Plan
from memcalc.records.values import adapter
from memcalc.registry.build_arguments import LEARNING_RATE, arguments_of
from memcalc.workload import layouts, loops, tasks
from memcalc.workload.tasks import Head

STEPS = 4
"""Optimizer steps of a script: state is made in the first, and all that follow are alike."""
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
    layout = layouts.of(plan).name
    if layout not in _LAYOUTS or (layout == "fsdp2" and (plan.loop != "plain" or plan.adapters)):
        raise UsageError(
            f"A script of the {plan.loop} loop has no words for --parallel {plan.parallel} yet: "
            "choose ddp, or fsdp2 without adapters in the plain loop."
        )
    if source.factory is not None or head.task.name not in _TASKS:
        raise UsageError(f"A script is written for {', '.join(_TASKS)}: {plan.model} is not.")
    if plan.scheme is not None and plan.scheme not in BITSANDBYTES:
        raise UsageError("A script quantizes by bitsandbytes: choose --quant nf4, fp4 or int8.")
    if plan.generate is not None and plan.scheme is not None:
        raise UsageError("A script generates with weights as they are: leave --quant out.")


class _Script:
    """The parts of one script, and what they import."""

    def __init__(self, plan: Plan, source: ModelSource, head: Head) -> None:
        self._plan, self._head, self._source = plan, head, source
        self._weights, self._autocast = _DTYPES[plan.precision]
        self._layout = layouts.of(plan).name
        self._loop = loops.of(plan)
        self._config = source.config or {}
        self.imports = {"import torch"}

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
            computed = self._autocast or self._weights
            told = [f"{name}={value!r}" for name, value in BITSANDBYTES[plan.scheme].items()]
            if "load_in_4bit=True" in told:
                told.append(f"bnb_4bit_compute_dtype=torch.{computed}")
            settings = ", ".join(told).replace("'", '"')
            yield f"quantization_config=BitsAndBytesConfig({settings})"
            yield 'device_map={"": 0}'

    def _adapters(self) -> Iterator[str]:
        if self._plan.adapters is None:
            return
        self.imports.add("from peft import LoraConfig, get_peft_model")
        said = adapter(self._plan.adapters)
        target = f'"{said.target}"' if isinstance(said.target, str) else repr(list(said.target))
        target = target.replace("'", '"')
        ranks = f"r={said.r}, lora_alpha={said.alpha:g}"
        yield f"adapters = LoraConfig({ranks}, target_modules={target})"
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

    # ---- what it is trained on

    def batches(self) -> Iterator[str]:
        """Define a function that makes a batch."""
        place = "" if self._plan.loop == "trainer" else ', device="cuda"'
        yield ""
        yield ""
        yield "def make_batch():"
        yield '    """Random data of the right shapes, in place of a data loader."""'
        yield from (f"    {line}" for line in self._tensors(place))
        yield ""
        yield ""

    def _tensors(self, place: str) -> Iterator[str]:
        plan, task = self._plan, self._head.task
        found = []
        if task.name == "image-classification":
            size = self._config.get("image_size") or 224
            height, width = size if isinstance(size, list) else (size, size)
            shape = f"{plan.batch}, {self._config.get('num_channels') or 3}, {height}, {width}"
            yield f"pixel_values = torch.randn({shape}{place})"
            found.append("pixel_values")
        else:
            tokens = self._vocabulary()
            yield f"input_ids = torch.randint(1, {tokens}, ({plan.batch}, {self._seq()}){place})"
            found.append("input_ids")
            if self._is_padded():
                yield "attention_mask = torch.ones_like(input_ids)"
                if plan.generate is None:
                    yield "attention_mask[:, -1] = 0"
                elif plan.padding:
                    yield "attention_mask[:, 0] = 0"
                found.append("attention_mask")
        if not plan.infers:
            for name in task.labels:
                count = self._seq() if task.labelled is None else task.labelled
                shape = f"({plan.batch}, {count})" if count else f"({plan.batch},)"
                most = self._vocabulary() if task.vocabulary or count else 2
                if count and task.name == "token-classification":
                    most = 2
                yield f"{name} = torch.randint({most}, {shape}{place})"
                found.append(name)
        yield f"return {{{', '.join(f'{chr(34)}{name}{chr(34)}: {name}' for name in found)}}}"

    def _vocabulary(self) -> int:
        text = self._config.get("text_config")
        size = (text if isinstance(text, dict) else self._config).get("vocab_size")
        return int(size) if isinstance(size, int) else 1000

    def _seq(self) -> int:
        known = lengths(self._config)
        return int(known.exact or self._plan.seq or known.default)

    def _is_padded(self) -> bool:
        if self._plan.generate is not None:
            return True
        wanted = self._plan.padding
        return not self._head.task.packed if wanted is None else wanted

    # ---- the loop

    def run(self) -> Iterator[str]:
        """Train, or generate."""
        plan = self._plan
        if plan.generate is not None:
            yield "with torch.no_grad():"
            told = f"max_new_tokens={plan.generate}, do_sample=False"
            told += "" if self._config.get("pad_token_id") is not None else ", pad_token_id=0"
            yield f"    model.generate(**make_batch(), {told})"
        elif plan.loop == "trainer":
            yield from self._trainer()
        else:
            yield from self._optimizer()
            yield from self._accelerated() if plan.loop == "accelerate" else self._plain()
            yield from self._evaluation()
        if self._layout != "single" and plan.loop == "plain":
            yield "torch.distributed.destroy_process_group()"

    def _optimizer(self) -> Iterator[str]:
        choice = registry.of(self._plan)
        module, _, name = choice.row.implementation.rpartition(".")
        if module == "torch.optim":
            named = f"torch.optim.{name}"
        else:
            self.imports.add(f"from {module} import {name}")
            named = name
        told = {"lr": LEARNING_RATE, **arguments_of(choice)}
        shown = ", ".join(f"{key}={_argument(key, value)}" for key, value in told.items())
        yield "trained = [parameter for parameter in model.parameters() if parameter.requires_grad]"
        yield f"optimizer = {named}(trained, {shown})"

    def _plain(self) -> Iterator[str]:
        plan, scaled = self._plan, self._plan.precision == "amp-fp16"
        if scaled:
            yield 'scaler = torch.amp.GradScaler("cuda")'
        yield f"for step in range({STEPS}):"
        deep = "    "
        accumulates = plan.grad_accum > 1
        if accumulates:
            yield f"    for micro in range({plan.grad_accum}):"
            deep = "        "
            if self._layout == "fsdp2":
                yield f"{deep}model.set_requires_gradient_sync(micro == {plan.grad_accum - 1})"
            if self._layout == "ddp":
                raise UsageError("A script has no words for --grad-accum with ddp yet.")
        yield f"{deep}batch = make_batch()"
        inner = deep
        if self._autocast:
            yield f'{deep}with torch.autocast("cuda", dtype=torch.{self._autocast}):'
            inner += "    "
        yield f"{inner}outputs = model(**batch)"
        yield f"{inner}loss = outputs.loss"
        yield from self._dropped(deep)
        if accumulates:
            yield f"{deep}loss = loss / {plan.grad_accum}"
        yield f"{deep}{'scaler.scale(loss)' if scaled else 'loss'}.backward()"
        norm = self._loop.clip_to(plan)
        if norm is not None:
            if scaled:
                yield "    scaler.unscale_(optimizer)"
            yield f"    torch.nn.utils.clip_grad_norm_(trained, {norm:g})"
        yield "    scaler.step(optimizer)" if scaled else "    optimizer.step()"
        if scaled:
            yield "    scaler.update()"
        yield f"    optimizer.zero_grad({'' if plan.set_to_none else 'set_to_none=False'})"

    def _accelerated(self) -> Iterator[str]:
        plan = self._plan
        yield "model, optimizer = accelerator.prepare(model, optimizer)"
        yield f"for step in range({STEPS * plan.grad_accum}):"
        yield "    with accelerator.accumulate(model):"
        yield "        batch = make_batch()"
        yield "        outputs = model(**batch)"
        yield "        loss = outputs.loss"
        yield from self._dropped("        ")
        yield "        accelerator.backward(loss)"
        norm = self._loop.clip_to(plan)
        if norm is not None:
            yield "        if accelerator.sync_gradients:"
            yield f"            accelerator.clip_grad_norm_(model.parameters(), {norm:g})"
        yield "        optimizer.step()"
        yield f"        optimizer.zero_grad({'' if plan.set_to_none else 'set_to_none=False'})"

    def _dropped(self, deep: str) -> Iterator[str]:
        if not self._loop.keep_outputs(self._plan):
            yield f"{deep}del outputs"

    def _evaluation(self) -> Iterator[str]:
        if not self._plan.eval:
            return
        yield "kept = []"
        yield "model.eval()"
        yield "with torch.no_grad():"
        yield f"    for _ in range({self._plan.eval}):"
        yield "        batch = make_batch()"
        inner = "        "
        if self._autocast and self._plan.loop == "plain":
            yield f'        with torch.autocast("cuda", dtype=torch.{self._autocast}):'
            inner += "    "
        yield f"{inner}outputs = model(**batch)"
        yield "        kept.append(outputs.logits)"
        yield from self._dropped("        ")

    def _trainer(self) -> Iterator[str]:
        plan = self._plan
        self.imports.add("from transformers import Trainer, TrainingArguments")
        told: dict[str, Any] = {
            "output_dir": "out",
            "max_steps": STEPS,
            **trainer.write(plan),
            "save_strategy": "no",
            "report_to": "none",
        }
        samples = STEPS * plan.batch * plan.grad_accum * plan.devices
        yield "class Samples(torch.utils.data.Dataset):"
        yield '    """Samples of random data."""'
        yield ""
        yield "    def __len__(self):"
        yield f"        return {samples}"
        yield ""
        yield "    def __getitem__(self, index):"
        yield "        return {name: rows[0] for name, rows in make_batch().items()}"
        yield ""
        yield ""
        yield "arguments = TrainingArguments("
        yield from (f"    {name}={_literal(value)}," for name, value in told.items())
        yield ")"
        yield "Trainer(model=model, args=arguments, train_dataset=Samples()).train()"


def _argument(key: str, value: Any) -> str:
    return f"torch.{value}" if key.endswith("_dtype") else _literal(value)


def _literal(value: Any) -> str:
    """Return a setting as Python, with double quotes."""
    return repr(value).replace("'", '"')


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
