"""Record every launch of the shipped optimizers' kernels on CUDA tensors; writes one JSON file.

Needs PyTorch's CUDA build with Triton over the stand-in driver, which writes what each launch was
given, table included, as a line of JSON to the file that $STANDIN_LAUNCHES names. Kernels do not
run there; everything up to the driver does. tests/optim/test_optim_launches.py holds the file
against the tensors: every element updated once, every address inside its own allocation.

    python benchmarks/record_launches.py evidence/standin/launches-torch2.13-cc90.json
"""

import argparse
import json
import os
import pathlib
import struct
import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
from torch import nn

from memcalc.optim import Adam8bit, AdamW8bit, AdamWBF16, ops

COLUMNS = {
    "AdamW8bit": ("state1", "state2", "absmax1", "absmax2"),
    "Adam8bit": ("state1", "state2", "absmax1", "absmax2"),
    "AdamWBF16": ("exp_avg", "exp_avg_sq", "shift"),
}
MAKERS = {"AdamW8bit": AdamW8bit, "Adam8bit": Adam8bit, "AdamWBF16": AdamWBF16}
FLOATS = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Parameters to update once they have a gradient, by how their tensors are made."""

    name: str
    optimizer: str
    dtype: torch.dtype
    params: list[torch.Tensor]
    settings: dict[str, int]


def plain(sizes: list[int], dtype: torch.dtype) -> list[torch.Tensor]:
    return [torch.empty(n, dtype=dtype, device="cuda") for n in sizes]


def strided(dtype: torch.dtype) -> list[torch.Tensor]:
    """Transposed, channels last, sliced, and starting in the middle of a storage."""
    wide = torch.empty(8, 16, 5, 14, dtype=dtype, device="cuda")
    return [
        torch.empty(96, 64, dtype=dtype, device="cuda").t(),
        torch.empty(8, 16, 5, 7, dtype=dtype, device="cuda").to(memory_format=torch.channels_last),
        wide[..., ::2],
        torch.empty(6001, dtype=dtype, device="cuda")[1:],
        torch.empty(8192, dtype=dtype, device="cuda")[4096:],
    ]


def cases() -> Iterator[Case]:
    sizes = {
        "one": [1],
        "tiny": [1, 2, 15, 16, 17, 255, 256, 257],
        "around the threshold": [4095, 4096, 4097, 2048, 2049, 8192],
        "odd": [5000, 4999, 65_537, 100_003],
        "many": [16 * (37 * n % 400) + n % 3 for n in range(1, 151)],
        "huge": [2**31 + 2051, 5000],
        "none": [0, 4096],
    }
    for optimizer in MAKERS:
        for dtype in FLOATS if optimizer != "AdamWBF16" else (torch.bfloat16,):
            for name, ns in sizes.items():
                if name != "huge" or dtype is torch.bfloat16:
                    params = plain(ns, dtype)
                    yield Case(
                        name=name, optimizer=optimizer, dtype=dtype, params=params, settings={}
                    )
            yield Case(
                name="strided", optimizer=optimizer, dtype=dtype, params=strided(dtype), settings={}
            )
    for bits, threshold in ((32, 4096), (8, 1), (8, 10**9)):
        yield Case(
            name=f"optim_bits {bits}, min_8bit_size {threshold}",
            optimizer="AdamW8bit",
            dtype=torch.float32,
            params=plain([1, 300, 5000, 65_536], torch.float32),
            settings={"optim_bits": bits, "min_8bit_size": threshold},
        )


def step(optimizer: torch.optim.Optimizer) -> tuple[list[int], int]:
    """Take a step; give the bytes that it asked the allocator for, in order, and their peak."""
    torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="python", context=None)
    optimizer.step()
    trace = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(enabled=None)
    asked, held, peak = [], 0, 0
    for event in trace:
        if event["action"] == "alloc":
            asked.append(event["size"])
            held += event["size"]
            peak = max(peak, held)
        elif event["action"] == "free_completed":
            held -= event["size"]
    return asked, peak


def logged(path: pathlib.Path) -> list[dict]:
    """Take what the driver has written since the last call."""
    lines = path.read_text().splitlines() if path.exists() else []
    path.write_text("")
    return [launch(json.loads(line)) for line in lines]


def launch(line: dict) -> dict:
    table = bytes.fromhex(line["table"])
    numbers = [struct.unpack("<f", bytes.fromhex(p))[0] for p in line["params"] if len(p) == 8]
    return {
        **{name: line[name] for name in ("kernel", "grid", "threads", "shared", "local")},
        "scalars": numbers[:10],
        "table": list(struct.unpack(f"<{len(table) // 8}q", table)),
    }


def record(case: Case, log: pathlib.Path) -> dict:
    params = [nn.Parameter(p) for p in case.params]
    for index, p in enumerate(params):
        # One in seven has no gradient, and one in five a gradient of other strides.
        if index % 7 != 6:
            p.grad = torch.empty_like(p)
            if index % 5 == 1 and p.dim() > 1:
                p.grad = torch.empty(p.shape, dtype=p.dtype, device="cuda")
    optimizer = MAKERS[case.optimizer](params, **case.settings)
    before = torch.cuda.memory_allocated()
    step(optimizer)  # makes the state
    state = torch.cuda.memory_allocated() - before
    logged(log)
    asked, peak = step(optimizer)
    blocks = [
        [block["address"], block["requested_size"]]
        for segment in torch.cuda.memory._snapshot()["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    return {
        "case": case.name,
        "optimizer": case.optimizer,
        "dtype": str(case.dtype).removeprefix("torch."),
        "settings": case.settings,
        "tensors": [described(p, optimizer) for p in params if p in optimizer.state],
        "allocations": blocks,
        "state_allocated": state,
        "asked": asked,
        "peak": peak,
        "launches": logged(log),
    }


def described(p: nn.Parameter, optimizer: torch.optim.Optimizer) -> dict:
    """A parameter's count, whether it is in a row, and the addresses of its parts."""
    state = optimizer.state[p]
    names = COLUMNS[type(optimizer).__name__]
    return {
        "elements": p.numel(),
        "bytes": p.numel() * p.element_size(),
        "dense": p.stride() == state[names[0]].stride(),
        "grad_alike": p.grad.stride() == state[names[0]].stride(),
        "addresses": [p.data_ptr(), p.grad.data_ptr()]
        + [state[name].data_ptr() for name in names if name in state],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    warnings.simplefilter("error")
    log = pathlib.Path(os.environ["STANDIN_LAUNCHES"])
    assert ops.cuda_path().__name__.endswith("launch"), "Triton does not run here"
    lines = ",\n".join(json.dumps(record(case, log)) for case in cases())
    versions = {"torch": torch.__version__, "triton": triton.__version__}
    capability = ".".join(map(str, torch.cuda.get_device_capability()))
    head = json.dumps({"environment": {**versions, "capability": capability}})[:-1]
    arguments.output.write_text(f'{head}, "cases": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # there is no device to tear down
