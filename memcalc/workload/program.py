"""A plan made ready to run: model, optimizer, batches and loop, for a real or simulated device."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from msgspec.structs import replace

from memcalc.errors import UsageError
from memcalc.records.model import Inventory
from memcalc.records.plan import Plan
from memcalc.registry import Choice
from memcalc.workload import (
    layouts,
    loops,
)
from memcalc.workload.inference import Inference
from memcalc.workload.inputs import Batch, Inputs
from memcalc.workload.job import Job
from memcalc.workload.precision import Precision


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
            compile=plan.compile,
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
            sampled=plan.engine is not None,
        )

    @property
    def in_backward(self) -> bool:
        """Each parameter is updated inside backward."""
        return self.plan.optim_in_backward or self.choice.row.in_backward
