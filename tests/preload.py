"""The job module that has the session's warm processes import what many forks would import each."""

import contextlib
import importlib

MODULES = (
    *("accelerate", "hypothesis", "peft", "pytest"),
    *("transformers.trainer", "torch.distributed.fsdp"),
)


def warm(kind):
    if kind == "measure":
        return load("memcalc.measure.runs.run")
    from memcalc.engine import driver, simulated_gpu
    from memcalc.estimation.question import ASSUMED

    driver.open_stub()
    # peft's import asks for the GPU, which each fork has one of its own of.
    with simulated_gpu.answer_without_cuda(ASSUMED):
        return load("memcalc.estimation.worker")


def load(mine):
    for name in (*MODULES, mine):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def answer(request, speaker):
    return {}
