"""transformers' Trainer: ``Trainer.train()`` itself runs.

What it decides is its own code's doing: ``config.use_cache``, holding all micro-batches of a step,
the loss by ``num_items_in_batch``, outputs upcast by accelerate, the norm of gradients, evaluation
with its logits side by side. Given to it are the optimizer, over the groups that its
``create_optimizer`` makes, and batches that are on the device already, where its data loader would
copy them. Read in transformers 5.23 and accelerate 1.15.
"""

from __future__ import annotations

import contextlib
import functools
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from memcalc.workload.loops import Loader, Loop

if TYPE_CHECKING:
    import torch

    from memcalc.workload.job import Job

MAX_GRAD_NORM = 1.0
"""Default of ``TrainingArguments.max_grad_norm``."""
_WRAPPED = "transformer_layer_cls_to_wrap"
_PREPARES = "_prepare_for_training"
"""Wraps the model and the optimizer."""
_PREPARED = "_load_optimizer_and_scheduler"
"""What comes last of that where ``_inner_training_loop`` does it in place, as before 5.0."""
_METHODS = (
    "create_optimizer",
    "get_train_dataloader",
    "get_eval_dataloader",
    "evaluate",
    "prediction_step",
)


def run(job: Job, steps: int) -> None:
    """Train for some optimizer steps; evaluation follows the last one, inside ``train``."""
    from transformers import Trainer

    from memcalc.workload import library_settings
    from memcalc.workload.job import as_found

    with (
        library_settings.state(),
        tempfile.TemporaryDirectory(prefix="memcalc-") as folder,
        as_found(job.model),
    ):
        trainer = Trainer(
            model=job.model,
            args=_arguments(job, folder, steps),
            optimizers=(None if library_settings.sharding(job) else job.optimizer, None),
            compute_metrics=lambda prediction: {},
        )
        with _Adapted(trainer, job).attached():
            trainer.train()


def groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """The groups of ``Trainer.create_optimizer``: weight decay for some, none for others."""
    from transformers import Trainer

    decays = set(Trainer.get_decay_parameter_names(None, model))
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    return [
        {"params": [p for name, p in named if name in decays], "weight_decay": weight_decay},
        {"params": [p for name, p in named if name not in decays], "weight_decay": 0.0},
    ]


def _arguments(job: Job, folder: str, steps: int) -> Any:
    from transformers import TrainingArguments

    from memcalc.workload import library_settings

    half = library_settings.mixed(job)
    arguments = TrainingArguments(
        output_dir=folder,
        max_steps=steps,
        gradient_accumulation_steps=job.plan.grad_accum,
        max_grad_norm=job.max_grad_norm or 0.0,
        bf16=half == "bf16",
        fp16=half == "fp16",
        use_cpu=job.device == "cpu",
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        log_level="error",
        torch_compile=job.plan.compile is not None,
        torch_compile_mode=job.plan.compile,
        per_device_eval_batch_size=job.plan.batch,
        **_spread(job),
    )
    engine_config = getattr(arguments, "hf_deepspeed_config", None)
    if engine_config is not None:
        # It compares the engine's precision with autocast's, and plain bf16 weights have none.
        engine_config.mismatches.clear()
    if job.plan.kv_cache is not None:
        # No argument before transformers 5.
        arguments.use_cache = job.plan.kv_cache
    return arguments


def _spread(job: Job) -> dict[str, Any]:
    """How the run is spread over GPUs, by the names that its arguments have."""
    from memcalc.workload import library_settings

    if job.layout.name == "ddp":
        return {f"ddp_{name}": value for name, value in job.options.items()}
    engine = library_settings.engine(job)
    if engine is not None:
        return {"deepspeed": engine, "per_device_train_batch_size": job.plan.batch}
    told = library_settings.sharding(job)
    if told is None:
        return {}
    named = {"fsdp_version": "version", "transformer_cls_names_to_wrap": _WRAPPED}
    return {"fsdp": True, "fsdp_config": {named.get(k, k): v for k, v in told.items()}}


class _Adapted:
    """Stands before some methods of a Trainer, by their names, and gives it what the job has.

    Each takes the Trainer's own method first, and calls it.
    """

    def __init__(self, trainer: Any, job: Job) -> None:
        self.trainer = trainer
        self.job = job
        self._number = 0
        self._batch: Any = None
        self._predicted: Any = None
        self._in_place = contextlib.ExitStack()
        """The preparation that an earlier release is in."""

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Adapt while the context lasts; a Trainer is trained once."""
        trainer = self.trainer
        for callback in [*trainer.callback_handler.callbacks]:
            if type(callback).__name__ == "PrinterCallback":
                trainer.remove_callback(callback)
        adapted = (*_METHODS, _PREPARES if hasattr(trainer, _PREPARES) else _PREPARED)
        for owner, names in (
            (trainer, [name for name in adapted if hasattr(trainer, name)]),
            (trainer.callback_handler, ("on_step_end",)),
        ):
            for name in names:
                setattr(owner, name, functools.partial(getattr(self, name), getattr(owner, name)))
        with _no_arrays(self.job):
            yield

    def create_optimizer(self, original: Any, model: Any = None) -> Any:
        """Hand out the plan's optimizer: under FSDP and DeepSpeed the Trainer makes one itself."""
        self.trainer.optimizer = self.job.optimizer
        return self.trainer.optimizer

    def get_train_dataloader(self, original: Any) -> Any:
        if not hasattr(self.trainer, _PREPARES):
            self._in_place.enter_context(self._preparing())
        count = self.trainer.args.max_steps * self.job.plan.grad_accum
        return Loader(lambda _: self.job.batch(), count)

    def get_eval_dataloader(self, original: Any, dataset: Any = None) -> Any:
        return Loader(self._batch_to_evaluate, self.job.eval_batches)

    @contextlib.contextmanager
    def _preparing(self) -> Iterator[None]:
        check = self.job.checked()
        yield
        check(self.trainer.model_wrapped)
        self.job.resume()

    def _prepare_for_training(self, original: Any, *args: Any) -> Any:
        with self._preparing():
            return original(*args)

    def _load_optimizer_and_scheduler(self, original: Any, *args: Any) -> None:
        original(*args)
        self._in_place.close()

    def on_step_end(self, original: Any, args: Any, state: Any, control: Any) -> Any:
        control = original(args, state, control)
        last = state.global_step == args.max_steps
        control.should_evaluate = last and bool(self.job.eval_batches)
        return control

    def evaluate(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        metrics = original(*args, **kwargs)
        self._batch = self._predicted = None
        return metrics

    def _batch_to_evaluate(self, number: int) -> Any:
        """A batch; for those of a simulated run that are left out, the one before again."""
        self._number = number
        if not self.job.simulated:
            return self.job.batch()
        if self.job.evaluates(number):
            self._batch = self.job.batch()
        return self._batch

    def prediction_step(self, original: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.job.simulated:
            return original(*args, **kwargs)
        if self.job.evaluates(self._number):
            loss, *rest = original(*args, **kwargs)
            # The loss itself is dropped as soon as it is repeated for each sample.
            self._predicted = loss is not None and _such(loss), *rest
            return loss, *rest
        from memcalc.workload.job import remembered

        such, logits, labels = self._predicted
        self._predicted = such, remembered(logits), labels
        return such() if such else None, *self._predicted[1:]


def _such(tensor: Any) -> Callable[[], Any]:
    """Make others like this one, without holding it."""
    import torch

    return functools.partial(torch.empty, tensor.shape, dtype=tensor.dtype, device=tensor.device)


@contextlib.contextmanager
def _no_arrays(job: Job) -> Iterator[None]:
    """What an evaluation kept is freed when it ends; a simulated run has no numbers to copy."""
    from transformers.trainer_pt_utils import EvalLoopContainer

    original = EvalLoopContainer.get_arrays
    if job.simulated:
        EvalLoopContainer.get_arrays = lambda container: None
    try:
        yield
    finally:
        EvalLoopContainer.get_arrays = original


LOOP = Loop(
    name="trainer",
    title="Trainer loop",
    summary="transformers' Trainer",
    run=run,
    keeps_outputs=False,
    fixed=(("keep_outputs", False), ("set_to_none", True)),
    max_grad_norm=MAX_GRAD_NORM,
    wide_embeddings=True,
    groups=groups,
)
