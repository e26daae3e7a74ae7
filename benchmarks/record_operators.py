"""Record what PyTorch's CUDA allocator sees of single operators, forward and backward.

Usage: ``python benchmarks/record_operators.py FILE [KIND]``, with a Python that has torch for CUDA;
a stand-in driver will do. With ``cudnn`` the cases are what cuDNN does, which is off otherwise;
with ``modules`` they are those of torch.nn, with ``library`` those that few models call, with
``layouts`` those given what does not lie in rows, with ``large`` those on more rows and bytes than
most layers have.
``tests/kernels/test_operators.py`` holds memcalc's own account of each against it.
"""

from __future__ import annotations

import os
import re
import sys
from typing import Any

import cudnn_cases
import large_cases
import layout_cases
import library_cases
import module_cases
import operator_cases
import recorded_card
import torch
from operator_cases import play

CASES = {
    "cudnn": cudnn_cases,
    "large": large_cases,
    "layouts": layout_cases,
    "library": library_cases,
    "modules": module_cases,
    "": operator_cases,
}


def events(entries: list[dict[str, Any]]) -> list[int]:
    """Births as bytes asked for, deaths as ``~number`` of the birth; inputs are left out."""
    found: list[int] = []
    numbers: dict[int, int] = {}
    births = 0
    for entry in entries:
        if entry["action"] == "alloc":
            numbers[entry["addr"]] = births
            births += 1
            found.append(entry["size"])
        elif entry["action"] == "free_completed":
            number = numbers.pop(entry["addr"], None)
            if number is not None:
                found.append(~number)
    return found


def record(case: Any) -> list[int]:
    """Play a case; inputs' gradients stay alive to the end."""
    inputs = case.inputs("cuda")
    # The history of each case alone: a snapshot of all that went before takes ever longer.
    torch.cuda.memory._record_memory_history(max_entries=10**6, context=None)
    try:
        play(case, inputs)
        return events(torch.cuda.memory._snapshot()["device_traces"][0])
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)


def main() -> None:
    kind = "".join(sys.argv[2:])
    torch.backends.cudnn.enabled = kind == "cudnn"
    torch.cuda.init()
    # Workspaces of matrix products are made once, not by the case that comes first.
    warm = torch.zeros(8, 8, device="cuda", requires_grad=True)
    torch.addmm(warm[0], warm, warm).sum().backward()
    found, failed = {}, {}
    for case in CASES[kind].cases():
        try:
            found[case.name] = record(case)
        except Exception as error:
            # Where the libraries lie is the recorder's own affair.
            failed[case.name] = re.sub(r"(?<=\s)/\S*/", "", str(error).split("\n")[0])[:120]
    threads = torch.cuda.get_device_properties(0).max_threads_per_multi_processor
    recorded_card.write(sys.argv[1], found, threads_per_multiprocessor=threads, failed=failed)
    print(f"{len(found)} recorded, {len(failed)} failed: {failed}")
    sys.stdout.flush()
    # A stand-in driver cannot always take a process down in order.
    os._exit(0)


if __name__ == "__main__":
    main()
