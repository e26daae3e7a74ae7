"""Plays recorded operator cases on the simulated device; for a process of its own."""

import json
import os
import pathlib
import sys
import traceback
from itertools import islice

ROOT = pathlib.Path(__file__).parent.parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import cudnn_cases  # noqa: E402
import large_cases  # noqa: E402
import layout_cases  # noqa: E402
import library_cases  # noqa: E402
import module_cases  # noqa: E402
import operator_cases  # noqa: E402
import torch  # noqa: E402
from operator_cases import play  # noqa: E402

from memcalc.kernels.attention.call import Backend  # noqa: E402
from memcalc.kernels.target import Target  # noqa: E402
from memcalc.trace import device  # noqa: E402
from memcalc.trace.operators import attention, autocast, overrides  # noqa: E402
from memcalc.trace.recorder import TraceRecorder  # noqa: E402
from memcalc.trace.scratch.kernels import TargetKernelMemory  # noqa: E402


def events(recorder, begin):
    """Births as bytes, deaths as ``~number`` of the birth, counted from where the case began."""
    ledger = recorder.ledger
    numbers, found = {}, []
    for event in ledger.events[begin:]:
        if event >= 0:
            numbers[event] = len(numbers)
            found.append(ledger.entries[event].bytes)
        elif ~event in numbers:
            found.append(~numbers[~event])
    return found


def simulated(case, target):
    """The events of a case, or what went wrong."""
    recorder = TraceRecorder(TargetKernelMemory(target))
    try:
        with device.fake_mode(), recorder:
            # Workspaces of matrix products are made once, not by the case that comes first.
            warm = torch.zeros(8, 8, device=device.NAME, requires_grad=True)
            torch.addmm(warm[0], warm, warm).sum().backward()
            inputs = case.inputs(device.NAME)
            begin = len(recorder.ledger.events)
            play(case, inputs)
            return events(recorder, begin)
    except Exception:
        return traceback.format_exc()[-400:]


def simulate(name, every=1):
    """The events of every case of a recording, or of one in so many, by name."""
    device.use("cuda")
    autocast.install()
    path = pathlib.Path(name)
    recorded = json.loads(path.read_text())
    target = Target(
        capability=tuple(recorded["capability"]),
        multiprocessors=recorded["multiprocessors"],
        torch=tuple(int(part) for part in recorded["torch"].split(".")[:2]),
        # The recorded cuDNN is one that PyTorch does not prefer for attention.
        cudnn_attention=not path.name.startswith("modules"),
    )
    overrides.install(target.torch)
    assert target.architecture.threads == recorded["threads_per_multiprocessor"]
    cudnn, modules = "-cudnn" in path.name, path.name.startswith("modules")
    library = path.name.startswith("library")
    kinds = (
        *((cudnn, cudnn_cases), (modules, module_cases), (library, library_cases)),
        (path.name.startswith("layouts"), layout_cases),
        (path.name.startswith("large"), large_cases),
    )
    source = next((cases for chosen, cases in kinds if chosen), operator_cases)
    os.environ["MEMCALC_NO_CUDNN"] = "" if cudnn else "1"
    if modules or library:
        # Optimizers read step counts back, which the stand-in driver answers with zero.
        os.environ["MEMCALC_READS"] = "zeros"
    plain = frozenset({Backend.EFFICIENT, Backend.MATH})
    attention.install(target, None if cudnn or modules else plain)
    return {
        case.name: simulated(case, target)
        for case in islice(
            (one for one in source.cases() if one.name in recorded["cases"]), 0, None, every
        )
    }
