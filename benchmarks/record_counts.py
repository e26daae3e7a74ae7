r"""Record what CUDA takes to find the nonzero, the different and the largest elements.

    memcalc simulate --backend driver --python PYTHON --gpu GPU --steps 0 -- \
        python benchmarks/record_counts.py FILE

Bytes of each allocation, in order. FILE must not be there: what was there stays as it is.
``tests/kernels/test_counts.py`` holds memcalc's own account of each against it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import recorded_card
import torch

SIZES = (1, 2305, 4097, 100_000, 3_000_000)
KINDS = (torch.int64, torch.int32, torch.float32, torch.float16, torch.int16, torch.uint8)
ROWS = (
    *((1, 20_000), (1, 3_000_000), (21, 9_999), (21, 20_000), (80, 8_000), (199, 5_000)),
    *((800, 800), (4_001, 400), (100_000, 400)),
)


def cases() -> Iterator[tuple[str, torch.Tensor, Callable[[torch.Tensor], Any]]]:
    for count in SIZES:
        yield f"nonzero {count}", torch.ones(count, dtype=torch.bool), torch.nonzero
        for kind in KINDS:
            named = f"{count} {str(kind).removeprefix('torch.')}"
            given = torch.ones(count, dtype=kind)
            yield f"unique {named}", given, torch.unique
            yield f"unique of all kinds {named}", given, of_all_kinds
    for rows, length in ROWS:
        for kind in (torch.float32, torch.float16, torch.int64):
            named = f"{rows} {length} {str(kind).removeprefix('torch.')}"
            yield f"topk {named}", torch.ones(rows, length, dtype=kind), lambda x: x.topk(5)


def of_all_kinds(tensor: torch.Tensor) -> Any:
    return torch.unique(tensor, return_inverse=True, return_counts=True)


def allocated(run: Callable[[torch.Tensor], Any], given: torch.Tensor) -> list[int]:
    there = given.cuda()
    torch.cuda.memory._record_memory_history(max_entries=10**4, context=None)
    try:
        made = run(there)
        entries = torch.cuda.memory._snapshot()["device_traces"][0]
        del made
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    return [entry["size"] for entry in entries if entry["action"] == "alloc"]


def main() -> None:
    found = {name: allocated(run, given) for name, given, run in cases()}
    recorded_card.write(sys.argv[1], found)


if __name__ == "__main__":
    main()
