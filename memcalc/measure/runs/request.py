"""What is asked of a run, and the environment it runs in."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from memcalc.files.artifact import encode
from memcalc.records.plan import Plan

_KEPT = ("PATH", "HOME", "LANG", "TMPDIR", "TZ", "VIRTUAL_ENV")
_KEPT_PREFIXES = (
    "CUDA_",
    "CUBLAS_",
    "HF_",
    "LD_",
    "MEMCALC_",
    "NVIDIA_",
    "OMP_",
    "PYTHON",
    "PYTORCH_",
    "STANDIN_",
    "TORCH_",
    "TRITON_",
)


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """One run to measure."""

    plan: Plan
    device: str
    steps: int = 4
    timeout: float = 600.0
    """Seconds after which the child is killed."""
    weights: bool = False
    """Load real weights instead of random ones."""
    snapshot: str | None = None


def body_of(request: Request) -> dict[str, Any]:
    """What the process that trains is told."""
    return {
        "plan": encode(request.plan),
        "device": request.device,
        "steps": request.steps,
        "weights": request.weights,
        "snapshot": request.snapshot,
    }


def environment_of(plan: Plan) -> dict[str, str]:
    """Only what a run needs, so that measurements can be repeated."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES)
    }
    if plan.alloc_conf:
        kept["PYTORCH_ALLOC_CONF"] = plan.alloc_conf
    kept.setdefault("TRANSFORMERS_VERBOSITY", "error")
    kept["TOKENIZERS_PARALLELISM"] = "false"
    return kept
