"""Records a run of transformers' Trainer: ``Trainer(callbacks=[memcalc.MemoryCallback()])``."""

import atexit
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from memcalc.catalog.plan import make
from memcalc.measure.recording.recorder import Recorder
from memcalc.records.measurement import Measurement

_DTYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16"}


class MemoryCallback(TrainerCallback):  # type: ignore[misc]
    """A callback that writes the memory of a training when it ends, even if it runs out of memory.

    A failure inside the callback is a warning, and nothing is recorded: the training goes on.

    Args:
        output: file to add the result to. With None no file is written: read ``measurement``.
        plan: fields of ``Plan`` that are not in the Trainer's arguments, such as ``model``.

    Raises:
        UsageError: ``plan`` has a wrong field or value.
    """

    measurement: Measurement | None = None

    def __init__(
        self,
        output: str | os.PathLike[str] | None = "memory.json",
        plan: Mapping[str, Any] | None = None,
    ) -> None:
        self._output = Path(output) if output is not None else None
        self._plan = dict(plan or {})
        make({"model": "unnamed", **self._plan})
        self._recorder: Recorder | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start to record."""
        model = kwargs.get("model")
        try:
            plan = {**_plan_from_arguments(args, model), **self._plan}
            make(plan)
        except Exception as error:
            plan = self._plan
            warnings.warn(f"memcalc: the arguments are not understood: {error}", stacklevel=2)
        self._recorder = Recorder(model, output=self._output, plan=plan)
        self._recorder.__enter__()
        atexit.register(self._at_exit)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop to record and write the result."""
        self._end(None)

    def _at_exit(self) -> None:
        # The Trainer tells its callbacks nothing of an error.
        self._end(getattr(sys, "last_value", None))

    def _end(self, error: BaseException | None) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is not None:
            atexit.unregister(self._at_exit)
            recorder.close(error)
            self.measurement = recorder.measurement


def _plan_from_arguments(args: Any, model: Any) -> dict[str, Any]:
    """Return the fields of ``Plan`` in the Trainer's arguments (transformers 5.23)."""
    config = getattr(model, "config", None)
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    precision = "amp-bf16" if args.bf16 else "amp-fp16" if args.fp16 else _DTYPES.get(dtype, "fp32")
    if args.bf16 and dtype is torch.bfloat16:
        precision = "bf16+amp"
    return {
        "model": getattr(config, "_name_or_path", "") or type(model).__name__,
        "optim": getattr(args.optim, "value", str(args.optim)),
        "precision": precision,
        "batch": args.per_device_train_batch_size,
        "grad_accum": args.gradient_accumulation_steps,
        "checkpointing": args.gradient_checkpointing,
        "max_grad_norm": args.max_grad_norm or None,
        "loop": "trainer",
    }
