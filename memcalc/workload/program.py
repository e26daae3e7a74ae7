"""A plan made ready to run: model, optimizer, batches and loop, for a real or simulated device."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from memcalc.catalog import models
from memcalc.errors import UsageError
from memcalc.records.model import Inventory
from memcalc.records.plan import FLASH_ATTN, Plan
from memcalc.registry import Choice
from memcalc.workload import (
    checkpointing,
    flash_attn,
    inference,
    layouts,
    loops,
    lora,
    past,
    quantised,
    sound,
    tasks,
)
from memcalc.workload.chunked import chunk_loss
from memcalc.workload.inference import Inference
from memcalc.workload.inputs import Batch, Inputs, Use, check, described
from memcalc.workload.inventory import take
from memcalc.workload.job import Job
from memcalc.workload.model import build
from memcalc.workload.precision import PRECISIONS, Precision
from memcalc.workload.quantised import compute_dtype
from memcalc.workload.said import said
from memcalc.workload.tasks import CALLABLE, Task


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """What to run; the model is not on the device yet."""

    plan: Plan
    model: torch.nn.Module
    inventory: Inventory
    choice: Choice
    batch: Callable[[Any], Batch]
    """Makes one micro-batch on the device it is given."""
    seq: int | None
    """Tokens per sample that were settled on; ``None`` for inputs without tokens."""
    precision: Precision
    assumptions: tuple[str, ...]
    inputs: Inputs | None = None
    """What makes the batches; ``None`` where the user described them."""
    until: int | None = None
    """Of the tokens to generate, how many are; ``None``: all."""

    def resized(self, batch: Any, seq: Any) -> Program:
        """The same program on batches of another size; whole numbers or symbols.

        Raises:
            UsageError: the model does not take such sequences, or its inputs are described.
        """
        if self.inputs is None:
            raise UsageError(
                "Batch and sequence of a model with --input are in its description: "
                "name a model that memcalc makes batches for."
            )
        inputs = self.inputs.resized(batch, seq)
        return replace(
            self,
            plan=replace(self.plan, batch=batch, seq=seq),
            batch=inputs.make,
            seq=inputs.seq if inputs.has_tokens else None,
            inputs=inputs,
        )

    def later(self, shift: int, until: int) -> Program:
        """The program when so many tokens are behind the prompt, up to so many tokens on."""
        assert self.plan.generate is not None
        moved = self
        if shift and self.decodes_beside_an_encoder:
            moved = replace(self, batch=functools.partial(self._with_decoded, shift))
        elif shift:
            assert self.inputs is not None
            moved = self.resized(self.plan.batch, self.inputs.seq + shift)
        plan = replace(moved.plan, generate=self.plan.generate - shift)
        return replace(moved, plan=plan, until=until)

    def _with_decoded(self, shift: int, device: Any) -> Batch:
        """Prompts whose decoder is given its first token and so many more."""
        batch = self.batch(device)
        config: Any = self.model.config
        start = config.decoder_start_token_id
        if start is None:
            start = self.model.generation_config.decoder_start_token_id  # type: ignore[union-attr]
        shape = self.plan.batch, 1 + shift
        tokens = torch.full(shape, start or 0, dtype=torch.long, device=device)
        return {**batch, "decoder_input_ids": tokens}

    @property
    def decodes_beside_an_encoder(self) -> bool:
        """What it generates follows the decoder's own prompt, not the encoder's."""
        config: Any = self.model.config
        return bool(config.is_encoder_decoder)

    def job(
        self,
        optimizer: torch.optim.Optimizer,
        *,
        device: str,
        batch: Callable[[], Batch],
        restore: Callable[[], None],
        simulated: bool = False,
    ) -> Job:
        """What its loop runs, once its model is on a device.

        Args:
            optimizer: over the model's parameters.
            device: where, by the name PyTorch knows it.
            batch: makes one micro-batch on the device.
            restore: loads the optimizer's state of a checkpoint, where the plan resumes one.
            simulated: the device holds no data.
        """
        plan = self.plan
        loop = loops.of(plan)
        return Job(
            model=self.model,
            optimizer=optimizer,
            batch=batch,
            samples=plan.batch,
            device=device,
            precision=self.precision,
            layout=layouts.of(plan),
            options=layouts.arguments(plan),
            exchanges_each=layouts.exchanges_each(plan),
            grad_accum=plan.grad_accum,
            max_grad_norm=loop.clip_to(plan),
            set_to_none=plan.set_to_none,
            keep_outputs=loop.keep_outputs(plan),
            kv_cache=plan.kv_cache,
            restore=restore if plan.resume else None,
            eval_batches=plan.eval or 0,
            simulated=simulated,
        )

    def inference(self, *, device: str, batch: Callable[[], Batch]) -> Inference:
        """What runs where nothing is trained, once the model is on a device.

        Args:
            device: where, by the name PyTorch knows it.
            batch: makes the inputs on the device.
        """
        plan = self.plan
        return Inference(
            model=self.model,
            batch=batch,
            device=device,
            precision=self.precision,
            tokens=plan.generate,
            until=self.until,
            cache=plan.cache,
            beams=plan.beams,
        )

    @property
    def in_backward(self) -> bool:
        """Each parameter is updated inside backward."""
        return self.plan.optim_in_backward or self.choice.row.in_backward


def prepare(plan: Plan, choice: Choice, *, device: str = "meta") -> Program:
    """Build everything that a plan names.

    Args:
        plan: what to build.
        choice: the optimizer.
        device: where; what it builds is moved to the device that trains later.

    Raises:
        UsageError: the model cannot be built or checkpointed, or a pattern matches nothing.
    """
    source = models.find(plan.model)
    head = tasks.choose(source, plan.task)
    precision = PRECISIONS[plan.precision]
    model_type = source.config.get("model_type") if source.config is not None else None
    traced = device == "meta"
    with (
        torch.device(device if plan.scheme is None else "meta"),
        flash_attn.stood_for(plan) if traced else contextlib.nullcontext(),
    ):
        model = build(
            source,
            head,
            attention=_attention(plan, model_type),
            dtype=precision.weights if plan.scheme is None else compute_dtype(plan),
            as_loaded=plan.scheme is not None,
        )
    program = program_of(plan, choice, model, head.task, name=source.name)
    return replace(program, inventory=replace(program.inventory, config=source.digest))


def _attention(plan: Plan, model_type: str | None) -> str | None:
    """The implementation that transformers is told; ``None``: its own choice."""
    if plan.attention in ("eager", FLASH_ATTN):
        return plan.attention
    by_release = plan.attention == "auto" and past.release(plan, model_type).eager
    return "eager" if model_type and by_release else None


def program_of(
    plan: Plan, choice: Choice, model: torch.nn.Module, task: Task, *, name: str = ""
) -> Program:
    """Make a program of a model that is built already.

    Raises:
        UsageError: the model cannot be checkpointed, or a pattern matches nothing.
    """
    loop = loops.of(plan)
    if plan.loss_chunks > 1:
        chunk_loss(model, plan.loss_chunks)
    cached = _kv_cache(model, plan.kv_cache)
    if plan.scheme is None:
        model, inventory = _finished(model, plan, name or plan.model, task.name)
    else:
        # What trains is known once it is loaded.
        inventory = take(model, name or plan.model, task.name)
    inference.check(model, plan)
    inputs, notes = _inputs(model, task, plan)
    batch = inputs.make if inputs is not None else described(plan.inputs)
    if task is CALLABLE:
        check(model, batch("meta"))
    return Program(
        plan=plan,
        model=model,
        inventory=inventory,
        choice=choice,
        batch=batch,
        seq=inputs.seq if inputs is not None and inputs.has_tokens else None,
        precision=PRECISIONS[plan.precision],
        assumptions=(
            *notes,
            *past.of(model, plan).notes,
            *said(plan, choice, loop, cached=cached),
        ),
        inputs=inputs,
    )


def _finished(
    model: torch.nn.Module, plan: Plan, name: str, task: str
) -> tuple[torch.nn.Module, Inventory]:
    """The model with its adapters, frozen and checkpointed as the plan says, and its tensors."""
    then = past.of(model, plan)
    past.give_loss(model, then)
    past.keep_past(model, then)
    if plan.adapters is not None:
        model = lora.attach(model, plan.adapters)
    inventory = take(model, name, task, plan.freeze)
    if not inventory.trainable and not plan.infers:
        raise UsageError(_nothing_left(plan))
    if plan.checkpointing:
        checkpointing.checkpoint(model, plan, reentrant=then.reentrant)
    return model, inventory


def _nothing_left(plan: Plan) -> str:
    if not plan.freeze:
        return "Nothing is left to train: no parameter of the model has requires_grad set."
    return "Nothing is left to train: freeze fewer parameters."


def finished(program: Program, loaded: torch.nn.Module) -> Program:
    """The program over a quantised model that is on its device.

    Raises:
        UsageError: it cannot be adapted or checkpointed, or a pattern matches nothing.
    """
    if program.plan.checkpointing:
        checkpointing.switch(loaded)
    if not program.plan.infers:
        quantised.prepare(loaded, program.plan)
    known = program.inventory
    model, inventory = _finished(loaded, program.plan, known.model, known.task)
    return replace(program, model=model, inventory=replace(inventory, config=known.config))


def _kv_cache(model: torch.nn.Module, wanted: bool | None) -> bool:
    """Set whether the model returns its keys and values, where the plan says so; ask it if not.

    Raises:
        UsageError: the model has none to return, and the plan asks for them.
    """
    config: Any = getattr(model, "config", None)
    has = "use_cache" in inspect.signature(model.forward).parameters
    if wanted is None:
        return has and bool(getattr(config, "use_cache", False))
    if not has or config is None:
        if wanted:
            raise UsageError(
                f"{type(model).__name__} keeps no keys and values: type --no-kv-cache."
            )
        return False
    for part in (config, config.get_text_config()):
        part.use_cache = wanted
    return wanted


def _inputs(model: torch.nn.Module, task: Task, plan: Plan) -> tuple[Inputs | None, list[str]]:
    if plan.inputs:
        return None, []
    padding = plan.padding if plan.padding is not None else not task.packed
    use = Use.PROMPTS if plan.generate else Use.FORWARD if plan.inference else Use.TRAINING
    inputs = Inputs(model, task, batch=plan.batch, seq=plan.seq, padding=padding, use=use)
    if plan.generate is not None:
        inputs.make_room(plan.generate)
    notes: list[str] = []
    if inputs.text_only:
        notes.append("batches hold text alone: no images and no sound")
    if inputs.recordings.follows:
        notes.append("each recording lasts as long as the tokens that it is heard with")
    elif inputs.hears:
        notes.append(f"each recording lasts {sound.SECONDS} seconds")
    if inputs.whole != inputs.seq:
        places = inputs.whole - inputs.seq
        notes.append(f"{places} tokens of each sample are its sound, --seq those of its text")
    notes.extend(sound.notes(inputs.config))
    if inputs.has_tokens:
        notes.append(
            "batches hold padding, so an attention mask is used"
            if padding
            else "all prompts are of one length: no padding"
            if plan.generate
            else "sequences are packed: no padding and no attention mask"
        )
        if padding and use is Use.TRAINING and plan.target == "cuda":
            notes.append(
                "all batches are of one length: others in between leave more in the "
                f"cache{'' if plan.devices > 1 else ' (--lengths)'}"
            )
    return inputs, notes
