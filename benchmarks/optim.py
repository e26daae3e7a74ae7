"""Step time of the shipped optimizers beside bitsandbytes' and PyTorch's, paired in one run.

    python benchmarks/optim.py                      # CPU, and CUDA where there is a GPU
    python benchmarks/optim.py --json evidence/optim.json

In every round each optimizer takes a step, in an order that reverses from round to round; a
ratio is the median of the rounds' ratios, so a slow moment of the machine hits both sides.
On CUDA a time is also given as a share of the memory limit: the bytes a step must read and
write, over the bandwidth of a copy measured in the same run.
"""

import argparse
import json
import pathlib
import platform
import statistics
import time
from dataclasses import asdict, dataclass

import torch
from torch import nn

from memcalc.optim import AdamW8bit, AdamWBF16


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Tensors to update, on a device, in a dtype."""

    name: str
    device: str
    dtype: torch.dtype
    shapes: list[tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One optimizer in one case; bytes and seconds."""

    case: str
    optimizer: str
    parameters: int
    seconds: float
    ratio: float
    against: str
    state_bytes: int
    step_peak_bytes: int | None
    must_move_bytes: int | None
    share_of_memory_limit: float | None


def transformer(layers, hidden, inner, vocabulary):
    """Give the shapes of an encoder with biases and layer norms, embeddings included."""
    layer = [(hidden, hidden)] * 4 + [(inner, hidden), (hidden, inner), (inner,)]
    layer += [(hidden,)] * 9
    return [(vocabulary, hidden), (512, hidden), *(layer * layers)]


def decoder(layers, hidden, inner, keys, vocabulary):
    """Give the shapes of a decoder with grouped keys, without biases."""
    layer = [(hidden, hidden)] * 2 + [(keys, hidden)] * 2
    layer += [(inner, hidden)] * 2 + [(hidden, inner)] + [(hidden,)] * 2
    return [(vocabulary, hidden), *(layer * layers), (hidden,)]


def cases(device):
    float32, bfloat16 = torch.float32, torch.bfloat16
    sets = [("MiniLM-like", transformer(6, 384, 1536, 30522))]
    if device == "cpu":
        sets += [("one of 16M", [(1 << 24,)]), ("200 of 4096", [(4096,)] * 200)]
    else:
        sets += [
            ("1.1B decoder", decoder(22, 2048, 5632, 256, 32000)),
            ("one of 256M", [(1 << 28,)]),
        ]
    for name, shapes in sets:
        for dtype in (float32, bfloat16):
            yield Case(name=name, device=device, dtype=dtype, shapes=shapes)


def pairs(dtype):
    """Give (ours, theirs) by name; theirs is what the ratio is against."""
    import bitsandbytes

    eight = (("AdamW8bit", AdamW8bit), ("bitsandbytes AdamW8bit", bitsandbytes.optim.AdamW8bit))
    if dtype is torch.float32:
        return [eight]

    def fused(params):
        return torch.optim.AdamW(params, fused=True)

    return [eight, (("AdamWBF16", AdamWBF16), ("torch AdamW fused", fused))]


def must_move(name, parameters, dtype):
    """Give the bytes a step must read or write: weights and states both ways, gradients once."""
    size = dtype.itemsize
    per_parameter = {
        "AdamW8bit": 3 * size + 4 + 16 / 256,
        "bitsandbytes AdamW8bit": 3 * size + 4 + 16 / 256,
        "AdamWBF16": 3 * 2 + 12,
        "torch AdamW fused": 3 * size + 4 * size,
    }
    return int(per_parameter[name] * parameters)


def synchronize(device):
    if device == "cuda":
        torch.cuda.synchronize()


def seconds_of(call, device):
    synchronize(device)
    start = time.perf_counter()
    call()
    synchronize(device)
    return time.perf_counter() - start


def copy_bandwidth(device):
    """Measure bytes per second, read plus written, of the best of twenty 1 GiB copies."""
    source = torch.empty(1 << 28, dtype=torch.float32, device=device)
    target = torch.empty_like(source)
    best = min(seconds_of(lambda: target.copy_(source), device) for _ in range(20))
    return 2 * source.numel() * 4 / best


def build(make, case):
    generator = torch.Generator(case.device).manual_seed(0)
    params = []
    for shape in case.shapes:
        p = nn.Parameter(torch.randn(shape, device=case.device, generator=generator).to(case.dtype))
        p.grad = 0.01 * torch.randn(shape, device=case.device, generator=generator).to(case.dtype)
        params.append(p)
    return make(params)


def state_bytes(optimizer):
    tensors = [t for s in optimizer.state.values() for t in s.values() if torch.is_tensor(t)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def step_peak(optimizer, device):
    if device != "cuda":
        return None
    synchronize(device)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    optimizer.step()
    return torch.cuda.max_memory_allocated() - before


def time_pair(pair, case, rounds):
    optimizers = [build(make, case) for _, make in pair]
    for optimizer in optimizers:
        for _ in range(3):
            optimizer.step()
    times = [[], []]
    for number in range(rounds):
        for which in (0, 1) if number % 2 else (1, 0):
            times[which].append(seconds_of(optimizers[which].step, case.device))
    return optimizers, times


def measure(pair, case, rounds, bandwidth):
    optimizers, times = time_pair(pair, case, rounds)
    parameters = sum(torch.Size(shape).numel() for shape in case.shapes)
    for which, (name, _) in enumerate(pair):
        seconds = statistics.median(times[which])
        moved = must_move(name, parameters, case.dtype)
        yield Result(
            case=f"{case.name}, {case.device}, {str(case.dtype).removeprefix('torch.')}",
            optimizer=name,
            parameters=parameters,
            seconds=seconds,
            ratio=statistics.median(a / b for a, b in zip(times[which], times[1], strict=True)),
            against=pair[1][0],
            state_bytes=state_bytes(optimizers[which]),
            step_peak_bytes=step_peak(optimizers[which], case.device),
            must_move_bytes=moved if bandwidth else None,
            share_of_memory_limit=moved / bandwidth / seconds if bandwidth else None,
        )


def line(one):
    limit = "" if one.share_of_memory_limit is None else f"{one.share_of_memory_limit:.0%}"
    peak = "" if one.step_peak_bytes is None else f"{one.step_peak_bytes:,}"
    return (
        f"| {one.case} | {one.optimizer} | {one.seconds * 1e3:.2f} | {one.ratio:.2f} | "
        f"{one.state_bytes:,} | {peak} | {limit} |"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--json", help="file for the results")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--device", choices=["cpu", "cuda"], action="append")
    arguments = parser.parse_args()
    devices = arguments.device or ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
    results, bandwidths = [], {}
    print("| case | optimizer | step, ms | ratio | state, bytes | step's peak, bytes | of limit |")
    print("|---|---|---|---|---|---|---|")
    for device in devices:
        bandwidth = copy_bandwidth(device) if device == "cuda" else None
        bandwidths[device] = bandwidth
        for case in cases(device):
            for pair in pairs(case.dtype):
                for one in measure(pair, case, arguments.rounds, bandwidth):
                    results.append(asdict(one))
                    print(line(one), flush=True)
    if arguments.json:
        machine = {
            "torch": torch.__version__,
            "threads": torch.get_num_threads(),
            "processor": platform.processor() or platform.machine(),
            "gpu": torch.cuda.get_device_name() if "cuda" in devices else None,
            "copy_bytes_per_second": bandwidths,
        }
        text = json.dumps({"machine": machine, "results": results}, indent=1)
        pathlib.Path(arguments.json).write_text(f"{text}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
