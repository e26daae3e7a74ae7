"""The job module that has the session's warm processes import what many forks would import each."""

import contextlib
import importlib

MODULES = (
    *("accelerate", "hypothesis", "peft", "pytest"),
    *("transformers.trainer", "torch.distributed.fsdp"),
)


def warm(hint):
    if hint:
        from memcalc.engine import driver

        driver.open_here()
    mine = "memcalc.estimation.desk" if hint else "memcalc.measure.runs.training"
    for name in (*MODULES, mine):
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def answer_for(breadcrumbs):
    return lambda request, speaker: {}
