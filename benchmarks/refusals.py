"""Calls that a GPU refuses, and calls beside them that it takes: devices, types, generators.

    python -m memcalc simulate --gpu a100-40gb --steps 0 --backend driver --python PYTHON -- \
        python benchmarks/refusals.py FILE

Tries each line of benchmarks/refusals.txt and writes how it ends, which must be the same over both
back-ends. PYTHON has PyTorch's CUDA build. FILE is new, and goes to evidence/standin: what stands
somewhere before is not written over.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

CALLS = Path(__file__).with_suffix(".txt")
WORDS = 24
"""Letters of an error that are written down."""


def ends(call: str) -> str:
    """The class of the error and how its words begin; empty: the call runs."""
    x = torch.ones(2, 4, 8, 64 if call.startswith("attention") else 8, device="cuda")
    known = {
        "torch": torch,
        "nn": nn,
        "functional": functional,
        "attention": functional.scaled_dot_product_attention,
        "x": x,
        "h": x.half(),
        "m": torch.ones(8, 8, device="cuda"),
        "g": torch.Generator("cuda"),
        "c": torch.Generator(),
    }
    try:
        eval(call, known)
    except Exception as error:
        kind = next(one for one in type(error).__mro__ if one.__module__ == "builtins")
        return f"{kind.__name__}: {str(error)[:WORDS]}"
    return ""


def main(file: str) -> None:
    """Try each."""
    warnings.filterwarnings("ignore")
    told = {call: ends(call) for call in CALLS.read_text().splitlines()}
    Path(file).write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
