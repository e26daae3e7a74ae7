"""DeepSpeed: its Python code runs, its compiled kernels do nothing.

The accelerator it finds is the one for CUDA, over the simulated GPU. Its engine drives the
optimizer that it was given, perhaps once a group of parameters, so a step is the engine's.
Read in 0.19.8.
"""

from __future__ import annotations

import contextlib
from types import ModuleType
from typing import Any

from memcalc.records.trace import Component, Phase
from memcalc.script.deepspeed_kernels import without_kernels
from memcalc.script.patches import Patches
from memcalc.script.phases import Phases
from memcalc.script.recorder import ScriptRecorder
from memcalc.trace.packages import deepspeed


def install(patches: Patches, recorder: ScriptRecorder, phases: Phases) -> None:
    """Act when DeepSpeed is imported.

    Args:
        patches: what is changed.
        recorder: the session's.
        phases: told of the engine's steps.
    """
    ledger = recorder.ledger
    without_kernels(patches, lambda said: recorder.assumptions.setdefault(said))

    def made(original: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
        before = len(ledger.entries)
        with phases.prepared():
            original(engine, *args, **kwargs)
        phases.drives(engine.module)
        ledger.label(deepspeed.shards(engine.module), Component.WEIGHTS)
        inner = getattr(engine.optimizer, "optimizer", None)
        if inner is not None:
            ledger.label(deepspeed.masters(inner), Component.MASTER_WEIGHTS)
        ledger.label_living(Phase.LOAD, Component.COMMUNICATION, since=before)

    def step(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
        with phases.one_step(engine):
            return original(engine, *args, **kwargs)

    def engine(module: ModuleType) -> None:
        seen = contextlib.ExitStack()
        seen.enter_context(deepspeed.gathering(ledger))
        patches.also(seen.close)
        patches.wrap(module.DeepSpeedEngine, "__init__", made)
        patches.wrap(module.DeepSpeedEngine, "_take_model_step", step)

    def accelerator(module: ModuleType) -> None:
        if getattr(module.ds_accelerator, "_name", "cuda") != "cuda":
            # Imported before there was a GPU, and asked for again.
            patches.set(module, "ds_accelerator", None)

    patches.when_imported("deepspeed.accelerator.real_accelerator", accelerator)
    patches.when_imported("deepspeed.runtime.engine", engine)
