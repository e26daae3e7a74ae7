"""The child that starts the ranks by torchrun.

A request is ``{"processes": n, "address": name}``, answered when all ranks are gone by
``{"failures": [[rank, exit code], ...]}``: those that failed by themselves; those that torchrun
ended because of them are not among them. An exit code below zero is a signal's number.
"""

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from memcalc.children.child import Breadcrumbs, Speaker
from memcalc.errors import MeasureError

RANK = "memcalc.measure.ranks"
"""The module that each rank runs."""


def warm(hint: str) -> None:
    """Import what launching needs; torchrun reads nothing of CUDA's at import."""
    importlib.import_module("torch.distributed.run")


def answer_for(breadcrumbs: Breadcrumbs) -> Callable[[dict[str, Any], Speaker], dict[str, Any]]:
    """A function that answers requests."""
    return _answer


def _answer(request: dict[str, Any], speaker: Speaker) -> dict[str, Any]:
    try:
        launcher = importlib.import_module("torch.distributed.run")
    except ImportError as error:
        raise MeasureError(
            f"torchrun, which is part of PyTorch, cannot be imported here ({error}): several "
            "processes need a PyTorch built with torch.distributed."
        ) from None
    # Ranks import what this process does, and nothing by chance from the folder they start in.
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    os.environ["PYTHONSAFEPATH"] = "1"
    processes, address = str(request["processes"]), str(request["address"])
    words = ["--standalone", "--nproc-per-node", processes, "--log-dir", os.devnull]
    given = launcher.parse_args([*words, "--module", RANK, address, str(os.getpid())])
    errors = importlib.import_module("torch.distributed.elastic.multiprocessing.errors")
    try:
        launcher.run(given)
    except errors.ChildFailedError as error:
        return {"failures": [[rank, one.exitcode] for rank, one in error.failures.items()]}
    return {"failures": []}
