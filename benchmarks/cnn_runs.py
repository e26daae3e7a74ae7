"""Whole training runs of CNNs: what is said without cuDNN against the library's own plans.

    python benchmarks/cnn_runs.py ask evidence/cnn_runs.json      (needs cuDNN; no GPU)
    python benchmarks/cnn_runs.py compare evidence/cnn_runs.json  (needs neither)

``ask`` leaves the recorded table aside and asks the installed library (or that in MEMCALC_CUDNN)
for every convolution; ``compare`` answers as memcalc does where no library is. A run whose
workspaces are all in the table has to be equal; the others are known within limits only, and are
shown with whether these hold what the library's plans take.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Iterator
from typing import Any

from memcalc.estimation.tracing import Desk
from memcalc.kernels import convolution, cudnn

from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction

MODELS = (
    "microsoft/resnet-50",
    *(f"cnn_models:{name}" for name in ("resnet_18", "resnet_34", "resnet_101", "regnet_y_040")),
    *(f"cnn_models:{name}" for name in ("mobilenet_v1", "mobilenet_v2", "convnext_tiny")),
    *(f"cnn_models:{name}" for name in ("convnext_v2_tiny", "efficientnet_b0", "bit_50")),
)
RUNS = (
    ("A100-80GB", 16, "fp32"),
    ("A100-80GB", 64, "amp-fp16"),
    ("H100 SXM", 32, "amp-bf16"),
    ("T4", 8, "fp32"),
    ("RTX 4090", 32, "amp-fp16"),
)


def plans() -> Iterator[Plan]:
    """Every run."""
    for model in MODELS:
        for gpu, batch, precision in RUNS:
            inputs = (f"pixel_values=float32[{batch},3,224,224]", f"labels=int64[{batch}]")
            yield Plan(
                model=model,
                gpu=gpu,
                batch=batch,
                precision=precision,
                optim="sgd",
                inputs=inputs if ":" in model else (),
            )


def answered(plan: Plan) -> dict[str, Any]:
    """The peak and the range of one run."""
    prediction: Prediction = Desk().estimate(plan)[0]
    span, peak = prediction.allocator, prediction.peak
    ends = (span.low, span.high) if span is not None else (peak.reserved, peak.reserved)
    return {
        "model": plan.model,
        "gpu": plan.gpu,
        "batch": plan.batch,
        "precision": plan.precision,
        "allocated": peak.allocated,
        "reserved": peak.reserved,
        "low": ends[0],
        "high": ends[1],
        "known": span is None,
    }


def ask(path: pathlib.Path) -> None:
    """All runs with every convolution asked of the library; what was answered is kept at once."""
    version = cudnn.version()
    if version is None:
        raise SystemExit("no cuDNN is installed: name its folders in MEMCALC_CUDNN")
    convolution.recorded = lambda _: {}  # type: ignore[assignment]
    runs: list[dict[str, Any]] = []
    for plan in plans():
        runs.append(answered(plan))
        path.write_text(json.dumps({"cudnn": version, "runs": runs}, indent=1) + "\n")


def without(plan: Plan) -> dict[str, Any]:
    """One run as it is answered where no library is."""
    cudnn._library = lambda: None  # type: ignore[assignment]
    return answered(plan)


def compare(recorded: dict[str, Any]) -> int:
    """Say how every run compares; the number of those that are said to be known and are not."""
    wrong = 0
    for plan, asked in zip(plans(), recorded["runs"], strict=True):
        said = without(plan)
        equal = all(said[key] == asked[key] for key in ("allocated", "reserved"))
        inside = said["low"] <= asked["reserved"] <= said["high"]
        wrong += said["known"] and not equal
        word = "equal" if equal else "inside" if inside else "OUTSIDE"
        ends = f"{said['low'] >> 20} to {said['high'] >> 20}"
        print(
            f"{word:8}{plan.model:32}{plan.gpu:12}{plan.batch:4} {plan.precision:9}"
            f"{asked['reserved'] >> 20:8} said {said['reserved'] >> 20} ({ends} MiB)",
            flush=True,
        )
    return wrong


def main() -> None:
    """Ask or compare."""
    verb, path = sys.argv[1], pathlib.Path(sys.argv[2])
    if verb == "ask":
        ask(path)
        return
    sys.exit(1 if compare(json.loads(path.read_text())) else 0)


if __name__ == "__main__":
    main()
