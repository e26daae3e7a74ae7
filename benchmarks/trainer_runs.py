"""What ``record_trainer.py`` records: the Trainer, and a script around accelerate's Accelerator.

Nothing of memcalc trains here: a dataset on the host, the package's own data loader, a collator
that pads, ``Trainer.train()`` with the optimizer it makes from its name, or the loop of
transformers' ``run_glue_no_trainer.py``. memcalc builds the model and reads the allocator between
phases.
"""

import tempfile

import torch
from accelerate import Accelerator
from accelerate import accelerator as accelerate_internals
from msgspec.structs import replace
from torch.utils.data import DataLoader, Dataset, SequentialSampler
from transformers import Trainer, TrainerCallback, TrainingArguments

from memcalc import registry
from memcalc.engine.program import build
from memcalc.files.artifact import encode
from memcalc.measure.meters import CudaMeter
from memcalc.measure.process import read_state
from memcalc.records.plan import Plan
from memcalc.records.trace import Phase
from memcalc.registry.build import build as build_optimizer
from memcalc.workload.placement import to_device

STEPS = 4
HALVES = {"amp-bf16": "bf16", "amp-fp16": "fp16"}


class Samples(Dataset):
    """Single samples on the host; those of text have different lengths where they are padded."""

    def __init__(self, batch: dict, count: int) -> None:
        self.batch, self.count = batch, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict:
        row = index % len(next(iter(self.batch.values())))
        sample = {name: value[row] for name, value in self.batch.items()}
        if "attention_mask" in sample and row:
            sample.pop("attention_mask")
            sample["input_ids"] = sample["input_ids"][: -min(row, 8)]
            sample["attention_mask"] = torch.ones_like(sample["input_ids"])
        return sample


class Pads:
    """A collator: every text as long as ``length``."""

    def __init__(self, length: int | None) -> None:
        self.length = length

    def __call__(self, samples: list[dict]) -> dict:
        """One batch."""
        batch = {}
        for name in samples[0]:
            rows = [sample[name] for sample in samples]
            if name in ("input_ids", "attention_mask"):
                rows = [torch.nn.functional.pad(r, (0, self.length - len(r))) for r in rows]
            batch[name] = torch.stack(rows)
        return batch


class Reads:
    """Reads the allocator's peaks in each phase."""

    def __init__(self) -> None:
        self.meter, self.at, self.readings = CudaMeter(None), None, []

    def turn(self, phase: Phase, step: int) -> None:
        """Go on to a phase."""
        if self.at != (phase, step):
            self.end()
            self.at = phase, step
            self.meter.begin()

    def end(self) -> None:
        """End the phase that runs."""
        if self.at is not None:
            self.readings.append(self.meter.end(*self.at))
        self.at = None


class Follows(TrainerCallback):
    """Tells of what the Trainer calls its callbacks for."""

    def __init__(self, reads: Reads) -> None:
        self.reads = reads

    def on_optimizer_step(self, args, state, control, **kwargs) -> None:
        """Gradients are cleared next."""
        self.reads.turn(Phase.ZERO_GRAD, state.global_step)

    def on_step_end(self, args, state, control, **kwargs) -> None:
        """Nothing more of this step follows."""
        self.reads.end()


class Followed(Trainer):
    """The Trainer, telling where it is."""

    reads: Reads

    def _get_train_sampler(self, dataset=None) -> SequentialSampler:
        return SequentialSampler(self.train_dataset)

    def get_batch_samples(self, *args, **kwargs):
        """All micro-batches of a step."""
        self.reads.turn(Phase.FORWARD, self.state.global_step)
        return super().get_batch_samples(*args, **kwargs)

    def training_step(self, *args, **kwargs):
        """One micro-batch."""
        self.reads.turn(Phase.FORWARD, self.state.global_step)
        loss = super().training_step(*args, **kwargs)
        if self.accelerator.sync_gradients:
            self.reads.turn(Phase.STEP, self.state.global_step)
        return loss

    def evaluate(self, *args, **kwargs):
        """All of an evaluation."""
        self.reads.turn(Phase.EVAL, STEPS - 1)
        metrics = super().evaluate(*args, **kwargs)
        self.reads.end()
        return metrics


def _tells_backward(accelerator: Accelerator, reads: Reads, step) -> None:
    backward = accelerator.backward

    def told(loss, **kwargs) -> None:
        reads.turn(Phase.BACKWARD, step())
        backward(loss, **kwargs)

    accelerator.backward = told


def run_trainer(plan: Plan, model: torch.nn.Module, data: tuple, reads: Reads):
    samples, evaluated, collate = data
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=STEPS,
            optim=plan.optim,
            per_device_train_batch_size=plan.batch,
            per_device_eval_batch_size=plan.batch,
            gradient_accumulation_steps=plan.grad_accum,
            gradient_checkpointing=plan.checkpointing,
            gradient_checkpointing_kwargs=_every(plan),
            bf16=plan.precision == "amp-bf16",
            fp16=plan.precision == "amp-fp16",
            eval_strategy="steps" if plan.eval else "no",
            eval_steps=STEPS,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            **({"max_grad_norm": plan.max_grad_norm} if plan.max_grad_norm else {}),
            **({"use_cache": plan.kv_cache} if plan.kv_cache is not None else {}),
        )
        trainer = Followed(
            model=model,
            args=arguments,
            train_dataset=samples,
            eval_dataset=evaluated,
            data_collator=collate,
            compute_metrics=lambda prediction: {},
            callbacks=[Follows(reads)],
        )
        trainer.reads = reads
        _tells_backward(trainer.accelerator, reads, lambda: trainer.state.global_step)
        trainer.train()
    return trainer.optimizer


def _every(plan: Plan) -> dict | None:
    return {"every_n_layers": plan.checkpoint_every} if plan.checkpoint_every > 1 else None


def run_accelerate(plan: Plan, model: torch.nn.Module, data: tuple, reads: Reads):
    samples, evaluated, collate = data
    choice = registry.of(plan)
    step = 0
    if plan.checkpointing:
        model.gradient_checkpointing_enable()
    accelerator = Accelerator(
        mixed_precision=HALVES.get(plan.precision, "no"),
        gradient_accumulation_steps=plan.grad_accum,
    )
    optimizer = build_optimizer(choice, model)
    loaders = [
        DataLoader(s, batch_size=plan.batch, collate_fn=collate) for s in (samples, evaluated)
    ]
    model, optimizer, train_loader, eval_loader = accelerator.prepare(model, optimizer, *loaders)
    _tells_backward(accelerator, reads, lambda: step)
    reads.turn(Phase.FORWARD, step)
    for number, batch in enumerate(train_loader):
        with accelerator.accumulate(model):
            if plan.keep_outputs is False:
                loss = model(**batch).loss
            else:
                outputs = model(**batch)
                loss = outputs.loss
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                reads.turn(Phase.STEP, step)
                if plan.max_grad_norm:
                    accelerator.clip_grad_norm_(model.parameters(), plan.max_grad_norm)
            optimizer.step()
            if accelerator.sync_gradients:
                reads.turn(Phase.ZERO_GRAD, step)
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            reads.end()
            step += 1
        if number + 1 < len(train_loader):
            reads.turn(Phase.FORWARD, step)
    if plan.eval:
        reads.turn(Phase.EVAL, STEPS - 1)
        model.eval()
        kept = []
        for batch in eval_loader:
            with torch.no_grad():
                outputs = model(**batch)
            kept.append(accelerator.gather_for_metrics(outputs.logits))
        reads.end()
    return optimizer


def _unpadded(tensor, dim=0, **kwargs):
    """accelerate's, which reads shapes back from the device: the stand-in has none to read."""
    from accelerate.utils import recursively_apply

    def asks(one):
        if dim < len(one.shape):
            torch.tensor(one.shape, device=one.device)[None].cpu()
        return one

    return recursively_apply(asks, tensor)


def record(plan: Plan) -> dict:
    """Train one plan in this process."""
    torch.backends.cudnn.enabled = False
    accelerate_internals.pad_across_processes = _unpadded
    bare = {"loop": "plain", "checkpointing": False, "checkpoint_every": 1, "optim": "sgd"}
    program = build(replace(plan, **bare, optim_args=()), real_weights=False)
    batch = program.batch("cpu")
    count = plan.batch * plan.grad_accum * STEPS
    data = (
        Samples(batch, count),
        Samples(batch, plan.batch * (plan.eval or 1)),
        Pads(program.seq),
    )
    model = to_device(program.model, "cuda").train()
    del program
    reads = Reads()
    optimizer = {"trainer": run_trainer, "accelerate": run_accelerate}[plan.loop](
        plan, model, data, reads
    )
    state = read_state(optimizer)
    return {
        "plan": encode(plan),
        "state": {"device": state.device, "host": state.host, "managed": state.managed},
        "phases": [
            [r.step, r.phase.value, r.requested, r.allocated, r.reserved]
            for r in reads.readings
            if r.step in (0, STEPS - 1)
        ],
    }
