"""What a process holds of a GPU outside PyTorch's allocator, library by library, read by NVML.

Usage: context_ladder.py FILE. Each rung is done once, in this order, and what has come with it is
printed; the first is the bare context. Set CUDA_MODULE_LOADING=EAGER for the other ladder.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from memcalc.files.artifact import encode
from memcalc.measure import process
from memcalc.measure.gpu.sampler import Sampler

SIDE = 1024


def _square(dtype: torch.dtype = torch.float32, *, grad: bool = False) -> torch.Tensor:
    return torch.ones(SIDE, SIDE, device="cuda", dtype=dtype, requires_grad=grad)


def _attention() -> None:
    heads = torch.ones(2, 8, 256, 64, device="cuda", dtype=torch.float16, requires_grad=True)
    functional.scaled_dot_product_attention(heads, heads, heads, is_causal=True).sum().backward()


def _convolution() -> None:
    layer = nn.Conv2d(64, 64, 3, padding=1).cuda()
    layer(torch.ones(8, 64, 56, 56, device="cuda")).sum().backward()


def _step(optimizer: Callable[..., torch.optim.Optimizer], **settings: bool) -> None:
    weight = nn.Parameter(_square())
    weight.grad = torch.ones_like(weight)
    optimizer([weight], **settings).step()


def _triton() -> None:
    from memcalc.optim import AdamW8bit

    _step(AdamW8bit)


def _bitsandbytes() -> None:
    from bitsandbytes.optim import AdamW8bit

    _step(AdamW8bit)


RUNGS: dict[str, Callable[[], object]] = {
    "context": lambda: torch.empty(1, device="cuda"),
    "one kernel": lambda: _square() + 1,
    "product in fp32": lambda: _square() @ _square(),
    "product in 16 bit with a bias": lambda: functional.linear(
        _square(torch.bfloat16), _square(torch.bfloat16), _square(torch.bfloat16)[0]
    ),
    "backward of a product": lambda: (_square(grad=True) @ _square()).sum().backward(),
    "attention": _attention,
    "convolution": _convolution,
    "AdamW, tensor lists": lambda: _step(torch.optim.AdamW, foreach=True),
    "AdamW, fused": lambda: _step(torch.optim.AdamW, fused=True),
    "a Triton kernel": _triton,
    "bitsandbytes": _bitsandbytes,
    "Fourier transform": lambda: torch.fft.fft(_square()),
    "linear algebra": lambda: torch.linalg.qr(_square()),
}


def main(file: str) -> None:
    sampler = Sampler()
    sampler.record_moment("before", {}, os.getpid())
    last, missing = 0, {}
    for name, rung in RUNGS.items():
        try:
            rung()
            torch.cuda.synchronize()
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}".split("\n")[0][:200]
            continue
        facts = process.read_device()
        sampler.record_moment(name, facts, os.getpid())
        reading = sampler.reading()
        held = reading.moments[-1].process if reading is not None else None
        if held is None:
            print(f"{name}: {sampler.failure or 'not known'}", flush=True)
            continue
        outside = held - facts["reserved"]
        print(f"{name}: {outside:,} bytes outside, {outside - last:+,}", flush=True)
        last = outside
    found = {
        "gpu": encode(sampler.reading()),
        "versions": process.versions(),
        "module_loading": os.environ.get("CUDA_MODULE_LOADING", "LAZY"),
        "missing": missing,
    }
    Path(file).write_text(json.dumps(found, indent=1) + "\n")
    sampler.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
