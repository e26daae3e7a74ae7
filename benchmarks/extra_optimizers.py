"""Record what optimizers of packages that memcalc does not require hold after a step, in bytes.

The packages are installed beside memcalc first; with a CUDA build (a GPU, or the stand-in driver)
the parameters are on the device. tests/registry holds the closed forms against the file.

    pip install torchao grokadamw torch-optimi schedulefree
    python benchmarks/extra_optimizers.py evidence/extra_optimizers.json
"""

import argparse
import os
import pathlib
import sys
import warnings
from importlib.metadata import version

import tables
import torch
from torch import nn

from memcalc import registry
from memcalc.errors import MemcalcError
from memcalc.registry.build import build

os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # states do not depend on compiled updates

SHAPES = [(400, 300), (64, 64), (71, 67), (5, 40, 30), (100, 50), (4095,), (7,), ()]
RUNS = [
    ("adamw_torch_8bit", {}),
    ("adamw_torch_8bit", {"block_size": 64}),
    ("adamw_torch_4bit", {}),
    ("adamw_torch_4bit", {"block_size": 256}),
    ("grokadamw", {}),
    ("stable_adamw", {}),
    ("stable_adamw", {"triton": False}),
    ("stable_adamw", {"kahan_sum": False}),
    ("schedule_free_adamw", {}),
    ("schedule_free_radam", {}),
    ("schedule_free_sgd", {}),
]


def held(value: object, at: dict[int, tuple[str, int]]) -> dict[int, tuple[str, int]]:
    """Collect (device, bytes) of every storage inside some state."""
    if isinstance(value, torch.Tensor):
        flatten = getattr(value, "__tensor_flatten__", None)
        if flatten is not None:
            for name in flatten()[0]:
                held(getattr(value, name), at)
        else:
            storage = value.untyped_storage()
            at[storage._cdata] = (value.device.type, storage.nbytes())
    elif isinstance(value, dict):
        for inner in value.values():
            held(inner, at)
    return at


def state_of(optimizer: torch.optim.Optimizer, device: str) -> dict[str, int]:
    """Bytes on the device and beside it; one package keeps its state among a group's settings."""
    parts: list[object] = [
        dict(optimizer.state),
        *(group["state"] for group in optimizer.param_groups if "state" in group),
    ]
    storages = held(dict(enumerate(parts)), {}).values()
    on_device = sum(size for place, size in storages if place == device)
    return {"device": on_device, "host": sum(size for _, size in storages) - on_device}


def record(name: str, args: dict, dtype: torch.dtype, device: str) -> dict:
    model = nn.Module()
    for index, shape in enumerate(SHAPES):
        value = torch.zeros(shape, dtype=dtype, device=device)
        model.register_parameter(f"p{index}", nn.Parameter(value))
    optimizer = build(registry.find(name, args), model)
    getattr(optimizer, "train", lambda: None)()  # schedule-free ones have two modes
    for _ in range(2):
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
        optimizer.step()
    dtype_name = str(dtype).removeprefix("torch.")
    return {
        "optimizer": name,
        "args": args,
        "dtype": dtype_name,
        "state": state_of(optimizer, device),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    runs, versions = [], {"torch": torch.__version__, "device": device}
    for name, args in RUNS:
        package = registry.find(name, args).row.package
        for dtype in (torch.float32, torch.bfloat16):
            try:
                runs.append(record(name, args, dtype, device))
                versions[package] = version(package)
            except MemcalcError as error:
                print(f"{name}: {error}", file=sys.stderr)
    head = {"environment": versions, "shapes": SHAPES}
    tables.write_rows(arguments.output, head, "runs", runs)


if __name__ == "__main__":
    main()
    sys.stdout.flush()
    os._exit(0)  # over the stand-in driver there is no device to tear down
