"""Follows DeepSpeed's engine, whose steps and backward are around those of PyTorch.

Read in DeepSpeed 0.19.8.
"""

from typing import Any

from memcalc.engine.follow.phases import Phases
from memcalc.engine.follow.steps import Steps
from memcalc.engine.packages.deepspeed import SECOND, THIRD, ZERO
from memcalc.engine.patches import Patches


def follow(patches: Patches, steps: Steps, phases: Phases) -> None:
    """Take updates of an engine for steps, whichever optimizers it drives, and see its backward."""

    def made(original: Any, *args: Any, **kwargs: Any) -> None:
        with steps.prepared():
            original(*args, **kwargs)

    def step(original: Any, engine: Any, *args: Any, **kwargs: Any) -> Any:
        with steps.one(engine):
            return original(engine, *args, **kwargs)

    module = "deepspeed.runtime.engine"
    patches.wrap_later(module, "DeepSpeedEngine.__init__", made)
    patches.wrap_later(module, "DeepSpeedEngine._take_model_step", step)
    patches.wrap_later(module, "DeepSpeedEngine.backward", phases.backward)
    for stage, name in ((f"{ZERO}.stage_1_and_2", SECOND), (f"{ZERO}.stage3", THIRD)):
        patches.wrap_later(stage, f"{name}.zero_grad", phases.clear_gradients)
