"""The exact method of ``--engine vllm``: vLLM itself starts on the simulated GPU."""

import json
from collections.abc import Iterator
from pathlib import Path

from msgspec.structs import replace

from memcalc.catalog.models import ModelSource
from memcalc.children.command import own_folder
from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation.question import ResolvedPlan
from memcalc.estimation.serving.run import python_with_vllm, start_vllm
from memcalc.estimation.serving.started import convert_figures
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.progress import Progress, tell

_DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32", "tf32": "float32"}


def find_vllm(plan: Plan) -> str:
    """Return the vLLM release of a plan, or the path of a Python that has vLLM, or ""."""
    if plan.engine != "vllm":
        return ""
    return plan.vllm or python_with_vllm() or ""


def answer(question: ResolvedPlan) -> Prediction | MemcalcError | None:
    """Start vLLM on the simulated GPU as a plan says; return its own figures or its error.

    Returns:
        ``None``: there is no vLLM here, or it did not start for a reason that is not the plan's.
    """
    plan = question.plan
    if not find_vllm(plan):
        return None
    try:
        python = python_with_vllm(None, plan.vllm)
        assert python is not None
        return _run_vllm(question, python)
    except EstimateError as error:
        if plan.vllm is not None:
            return error
        tell(Progress(f"vLLM itself did not answer ({error}), so its rules do"))
        return None
    except MemcalcError as error:
        return error


def _run_vllm(question: ResolvedPlan, python: str) -> Prediction:
    plan, gpu = question.plan, question.gpu
    assert gpu is not None
    # Of the prompt, and generated ones.
    length = (plan.seq or question.lengths.default) + (plan.generate or 0)
    tell(Progress(f"starting vLLM for {plan.model}: half a minute to two"))
    with (
        own_folder(in_cache=False) as scratch,
        open(scratch / "vllm.log", "w", encoding="utf-8") as log,
    ):
        words = ["serve", *_model_arguments(question.source, scratch), *_options(plan)]
        found = start_vllm(
            [*words, "--port", "0", "--host", "127.0.0.1"],
            gpu,
            python=python,
            count=plan.devices,
            length=length,
            out=log,
        )
    made = convert_figures(plan, gpu, found)
    return replace(made, seq=length - (plan.generate or 0))


def _model_arguments(source: ModelSource, scratch: Path) -> Iterator[str]:
    """Yield ``vllm serve``'s arguments for the model; writes a bundled config to a folder.

    Tokenizers take no GPU memory, and are not fetched.
    """
    if source.origin == "hub" or source.config is None:
        yield source.name
        return
    folder = scratch / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(source.config))
    yield from (str(folder), "--skip-tokenizer-init")


def _options(plan: Plan) -> Iterator[str]:
    """Yield the plan's settings as options of ``vllm serve``."""
    yield from ("--dtype", _DTYPES.get(plan.precision, "auto"))
    if plan.devices > 1:
        yield from ("--tensor-parallel-size", str(plan.devices))
    for name, value in plan.engine_args:
        option = name.replace("_", "-")
        if isinstance(value, bool):
            yield f"--{'' if value else 'no-'}{option}"
        else:
            yield from (f"--{option}", str(value))
