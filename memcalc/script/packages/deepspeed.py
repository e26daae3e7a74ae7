"""DeepSpeed: its Python code runs, its compiled kernels do nothing.

Its engine drives the optimizer that it was given, perhaps once a group of parameters, so a step is
the engine's. Read in 0.19.8.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

from memcalc.engine.patches import Patches
from memcalc.engine.scripts.session import Session
from memcalc.records.trace import Component
from memcalc.script.deepspeed_kernels import without_kernels


def install(patches: Patches, session: Session) -> None:
    """Act when DeepSpeed is imported.

    Args:
        patches: what is changed.
        session: told of the engine's steps.
    """
    without_kernels(patches, session.say)

    def made(original: Any, engine: Any, *args: Any, **kwargs: Any) -> None:
        before = session.counters.moments()
        with session.steps.prepared():
            original(engine, *args, **kwargs)
        session.models.trains(engine.module)
        session.models.sweep()
        session.counters.guess(Component.COMMUNICATION, before)

    def step(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
        with session.steps.one(engine):
            return original(engine, *args, **kwargs)

    def engine(module: ModuleType) -> None:
        patches.wrap(module.DeepSpeedEngine, "__init__", made)
        patches.wrap(module.DeepSpeedEngine, "_take_model_step", step)

    patches.when_imported("deepspeed.runtime.engine", engine)
