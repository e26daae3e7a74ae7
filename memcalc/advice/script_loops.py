"""The batches and the loop of a written training script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from memcalc import registry
from memcalc.advice.script_parts import Parts
from memcalc.catalog.positions import lengths
from memcalc.dialects import trainer
from memcalc.errors import UsageError
from memcalc.registry.build_arguments import LEARNING_RATE, arguments_of

STEPS = 4
"""Optimizer steps of a script: state is made in the first, and all that follow are alike."""


class Loops(Parts):
    """Writes what a model is trained on, and the loop that trains it."""

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
