"""What all parts of a written training script know, and what they import."""

from __future__ import annotations

from memcalc.catalog.models import ModelSource
from memcalc.records.plan import Plan
from memcalc.workload import layouts, loops
from memcalc.workload.tasks import Head

_DTYPES = {
    "fp32": ("float32", ""),
    "tf32": ("float32", ""),
    "amp-fp16": ("float32", "float16"),
    "amp-bf16": ("float32", "bfloat16"),
    "bf16+amp": ("bfloat16", "bfloat16"),
    "bf16": ("bfloat16", ""),
    "fp16": ("float16", ""),
}
"""Types of the weights and of autocast, empty: none."""


class Parts:
    """A plan as a script needs it, and the imports that its parts ask for."""

    def __init__(self, plan: Plan, source: ModelSource, head: Head) -> None:
        self._plan, self._head, self._source = plan, head, source
        self._weights, self._autocast = _DTYPES[plan.precision]
        self._layout = layouts.of(plan).name
        self._loop = loops.of(plan)
        self._config = source.config or {}
        self.imports = {"import torch"}
