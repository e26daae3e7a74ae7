"""A process over the stub driver and the cuDNN shim, which runs each piece of code in a fork."""

import functools
import os
import re
import sys
from pathlib import Path

import pytest

from tests.engine.forking_process import ForkingProcess

ROOT = Path(__file__).parents[2]
CAPABILITIES = {
    "7.5": {"CAPABILITY": 75, "PROCESSORS": 40, "THREADS": 1024, "SHARED_OF_BLOCK": 65536},
    "8.0": {"CAPABILITY": 80, "PROCESSORS": 108, "THREADS": 2048, "SHARED_OF_BLOCK": 166912},
    "8.6": {"CAPABILITY": 86, "PROCESSORS": 82, "THREADS": 1536, "SHARED_OF_BLOCK": 101376},
    "8.9": {"CAPABILITY": 89, "PROCESSORS": 128, "THREADS": 1536, "SHARED_OF_BLOCK": 101376},
    "9.0": {"CAPABILITY": 90, "PROCESSORS": 132, "THREADS": 2048, "SHARED_OF_BLOCK": 232448},
    "10.0": {"CAPABILITY": 100, "PROCESSORS": 148, "THREADS": 2048, "SHARED_OF_BLOCK": 232448},
    "12.0": {"CAPABILITY": 120, "PROCESSORS": 170, "THREADS": 1536, "SHARED_OF_BLOCK": 101376},
}
_BEGINS = """
import ctypes, os, sys
from pathlib import Path
from memcalc.engine.cudnn import library, loading
from memcalc.engine.stub import load
root = Path(sys.argv[1])
found = library.find([root.parent], (9, 0))
os.environ.update(loading.environment(found))
load.load_into_process(load.prepare(root, sys.argv[2]))
import torch
if isinstance(found, library.Missing):
    loading.switch_off()
if sys.argv[3] == "loaded":
    ctypes.CDLL(None).memcalc_cudnn_load()
def failure():
    # Why cuDNN could not be loaded when the program needed it.
    reason = ctypes.CDLL(None).memcalc_cudnn_reason
    reason.restype = ctypes.c_char_p
    return reason().decode()
def level(name):
    return torch.cuda.memory_stats()[f"requested_bytes.all.{name}"]
def scratch(call):
    # What a call takes beside its result, once its plans are kept.
    call()
    torch.cuda.reset_peak_memory_stats()
    before = level("current")
    result = call()
    return level("peak") - level("current")
"""


@functools.cache
def cuda_torch():
    """The running PyTorch's package folder and CUDA version; the test is skipped without CUDA."""
    import torch

    if torch.version.cuda is None:
        pytest.skip("PyTorch has no CUDA here")
    return Path(torch.__file__).parent, torch.version.cuda


@functools.cache
def cudnn():
    """The cuDNN that is installed beside PyTorch; the test is skipped where it cannot be asked."""
    from memcalc.engine.cudnn import library

    root, _ = cuda_torch()
    found = library.find([root.parent], (9, 0), offline=True)
    if isinstance(found, library.Missing):
        pytest.skip(found.reason)
    return found


def settings(capability):
    """Variables of a simulated GPU."""
    return {f"MEMCALC_STUB_{name}": str(value) for name, value in CAPABILITIES[capability].items()}


class CudnnProcess(ForkingProcess):
    """The process; ``loaded``: it loads the real library before it forks."""

    def __init__(self, *, loaded=False):
        cudnn()
        root, cuda = cuda_torch()
        arguments = [str(root), cuda, "loaded" if loaded else ""]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        super().__init__(sys.executable, _BEGINS, arguments, environment)

    def run(self, code, capability="9.0", **more):
        """What a piece of code leaves in ``answer``."""
        return self.ask(code, {**settings(capability), **more})


def declared():
    """Names of the functions in the headers of the installed cuDNN."""
    folder = Path(cudnn().folder).parent / "include"
    text = "\n".join(path.read_text() for path in folder.glob("cudnn_*.h"))
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", text, flags=re.DOTALL)
    return sorted(set(re.findall(r"CUDNNWINAPI\s+(cudnn\w+)\s*\(", text)))
