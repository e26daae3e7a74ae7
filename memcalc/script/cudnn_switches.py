"""A script may switch cuDNN off and on, let it try its engines, and leave some out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from msgspec.structs import replace

from memcalc.kernels.target import Target
from memcalc.script.kernels import ScriptKernels
from memcalc.script.patches import Patches
from memcalc.script.recorder import ScriptRecorder
from memcalc.trace.operators import deterministic

REPEATED = (
    "torch.use_deterministic_algorithms is on: convolutions, attention and what puts values into "
    "places take what they take then; the rest is counted as without it"
)


def install(
    patches: Patches,
    recorder: ScriptRecorder,
    kernels: ScriptKernels,
    target: Target,
    say: Callable[[str], None],
) -> None:
    """Follow ``torch.backends.cudnn`` and ``torch.use_deterministic_algorithms``."""

    def use() -> None:
        kernels.use(
            replace(
                target,
                cudnn=recorder.cudnn,
                cudnn_benchmark=recorder.cudnn_benchmark,
                cudnn_deterministic=torch.backends.cudnn.deterministic
                or torch.are_deterministic_algorithms_enabled(),
                deterministic=deterministic.is_strict(),
                ordered=deterministic.is_wanted(),
            )
        )

    def switch(original: Any, wanted: bool) -> None:
        original(wanted)
        recorder.cudnn = wanted and target.cudnn
        use()

    def benchmark(original: Any, wanted: bool) -> None:
        original(wanted)
        recorder.cudnn_benchmark = wanted
        use()

    def repeat(original: Any, wanted: bool, **how: Any) -> None:
        original(wanted, **how)
        use()

    def repeat_all(original: Any, wanted: bool, **how: Any) -> None:
        repeat(original, wanted, **how)
        if wanted:
            say(REPEATED)

    for name, around in (("enabled", switch), ("benchmark", benchmark), ("deterministic", repeat)):
        patches.wrap(torch._C, f"_set_cudnn_{name}", around)
        # torch.backends.cudnn.NAME = ... calls the function that it was made with.
        patches.wrap(vars(type(torch.backends.cudnn))[name], "setter", around)
    patches.wrap(torch._C, "_set_deterministic_algorithms", repeat_all)
