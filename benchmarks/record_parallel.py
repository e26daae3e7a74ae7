"""Record single ranks of runs over several GPUs with PyTorch's CUDA code; writes one JSON file.

Run it with a Python whose torch is a CUDA build over the stand-in driver and a stand-in NCCL that
sends nothing and answers at once. Each run is one process, one rank of a group whose other members
are not there; wrappers, collectives and the allocator are PyTorch's own.

    python benchmarks/record_parallel.py configs/suites/parallel.toml evidence/standin/parallel.json
"""

import argparse
import contextlib
import importlib
import json
import os
import pathlib
import sys
import time
import types
from typing import ClassVar

os.environ.setdefault("TORCH_NCCL_ENABLE_MONITORING", "0")
import torch
import torch.distributed as dist
from record_standin import STEPS, compact, settings

from memcalc.catalog.suite import load
from memcalc.files.artifact import encode
from memcalc.measure.runs import run as runs
from memcalc.measure.runs.run import Options, measure
from memcalc.workload import layouts, loops

PAUSE = 0.25
"""NCCL's watchdog holds tensors of asynchronous collectives until it looks again (every 100 ms);
steps over the stand-in driver are shorter, so each phase waits for it."""


class LonelyStore(dist.Store):
    """A store that never waits: what other ranks would have written is there already."""

    alive: ClassVar[list["LonelyStore"]] = []
    """C++ holds a store without its Python half, which must not go before it."""

    def __init__(self) -> None:
        super().__init__()
        self.held: dict[str, bytes] = {}
        self.alive.append(self)

    def set(self, key, value):
        self.held[key] = value.encode() if isinstance(value, str) else bytes(value)

    def get(self, key):
        return self.held.setdefault(key, b"\7" * 128)

    def add(self, key, amount):
        total = int(self.held.get(key, b"0")) + amount
        self.held[key] = str(total).encode()
        return total

    def check(self, keys):
        return all(key in self.held for key in keys)

    def wait(self, keys, timeout=None):
        return None

    def delete_key(self, key):
        return self.held.pop(key, None) is not None

    def set_timeout(self, timeout):
        return None

    def num_keys(self):
        return len(self.held)

    def clone(self):
        return self


class Patient:
    """Waits after each phase."""

    def said(self, reading):
        time.sleep(PAUSE)

    def moment(self, name, facts):
        return None


def agreeing(compared):
    """A function that ranks compare something by: what they tell each other here is stale."""

    def agree(*args, **named):
        with contextlib.suppress(RuntimeError):
            compared(*args, **named)

    return agree


def never_overflows() -> None:
    """What is read back over the stand-in is stale: a step that is skipped would make no state."""
    for name, kind in (
        ("stage_1_and_2", "DeepSpeedZeroOptimizer"),
        ("stage3", "DeepSpeedZeroOptimizer_Stage3"),
    ):
        module = importlib.import_module(f"deepspeed.runtime.zero.{name}")
        checked = getattr(module, kind).has_overflow

        def no(self, *args, checked=checked, **named):
            checked(self, *args, **named)
            return False

        getattr(module, kind).has_overflow = no
        module.is_invalid_grad_norm = lambda norm: False
    # The same goes for what ranks tell each other.
    utils = importlib.import_module("deepspeed.runtime.zero.utils")
    compared = utils.assert_ints_same_as_other_ranks

    agree = agreeing(compared)
    for name, module in list(sys.modules.items()):
        if name.startswith("deepspeed.") and hasattr(module, "assert_ints_same_as_other_ranks"):
            module.assert_ints_same_as_other_ranks = agree


def zeros_are_read() -> None:
    """What a Python program reads from the GPU is zero, as nothing is computed there.

    The driver writes nothing to the host's pinned memory, where something else may have been.
    """
    for name in ("item", "__bool__", "__int__", "__float__", "__index__"):
        read = getattr(torch.Tensor, name)

        def zero(self, read=read):
            value = read(self)
            return type(value)(0) if self.is_cuda else value

        setattr(torch.Tensor, name, zero)


class OnlyMetered:
    """A loop that is not run again for its time: of a run over the stand-in there is none.

    accelerate would prepare the optimizer once more, and read its steps back from the device.
    """

    def __init__(self, loop) -> None:
        self.loop = loop

    def run(self, job, watch, steps):
        if isinstance(watch, runs._Clock):
            watch.ends += [0.0, 1.0]
        else:
            self.loop.run(job, watch, steps)


def record(plan, rank: int, file: str) -> None:
    torch.backends.cudnn.enabled = False
    zeros_are_read()
    spread = layouts.spread(plan)
    offloads = dict(plan.parallel_args).get("offload") == "cpu"
    if offloads:
        importlib.import_module("torch.testing._internal.distributed.fake_pg")
    backend = "cpu:fake,cuda:nccl" if offloads else "nccl"
    # What a launcher sets.
    os.environ.update(RANK=str(rank), LOCAL_RANK="0", WORLD_SIZE=str(spread.world))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    if layouts.of(plan).package == "deepspeed":
        never_overflows()
    torch.nn.parallel.distributed._verify_param_shape_across_processes = agreeing(
        torch.nn.parallel.distributed._verify_param_shape_across_processes
    )
    runs.loops = types.SimpleNamespace(of=lambda plan: OnlyMetered(loops.of(plan)))
    dist.init_process_group(backend, store=LonelyStore(), rank=rank, world_size=spread.world)
    measured = encode(measure(plan, Options(device="cuda", steps=STEPS), Patient()))
    found = {**compact(measured), "rank": rank, "environment": measured["versions"]}
    pathlib.Path(file).write_text(json.dumps(found))


def not_yet(kept: dict, runs: list) -> list:
    """Runs of an earlier recording that the suite has not come to."""
    plans = [run["plan"] for run in runs]
    return [run for run in kept.values() if run["plan"] not in plans]


def write(file: pathlib.Path, environment: dict, told: dict, runs: list) -> None:
    """Write the recording; after each run, so that none is lost with the next one."""
    lines = ",\n".join(json.dumps(run) for run in runs)
    head = json.dumps({"environment": environment, "settings": told})[:-1]
    file.write_text(f'{head}, "runs": [\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--only", default="", help="only layouts whose text contains this")
    arguments = parser.parse_args()
    told = settings()
    kept, before = {}, {}
    if arguments.output.exists():
        before = json.loads(arguments.output.read_text())["environment"]
        kept = {
            json.dumps(run["plan"]): run for run in json.loads(arguments.output.read_text())["runs"]
        }
    runs = []
    for plan in load(arguments.suite):
        if arguments.only not in f"{plan.parallel} {plan.parallel_args}":
            continue
        if json.dumps(encode(plan)) in kept:
            runs.append(kept[json.dumps(encode(plan))])
            continue
        file = f"{arguments.output}.{os.getpid()}"
        child = os.fork()
        if child == 0:
            try:
                record(plan, layouts.checked_rank(plan), file)
            except BaseException as error:
                print(
                    f"{plan.model} {plan.parallel}: {type(error).__name__}: {error}"[:600],
                    file=sys.stderr,
                )
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        if pathlib.Path(file).exists():
            runs.append(json.loads(pathlib.Path(file).read_text()))
            pathlib.Path(file).unlink()
            before = runs[-1].pop("environment", before)
            write(arguments.output, before, told, runs + not_yet(kept, runs))
            print(f"{plan.model} {plan.parallel} rank {plan.rank}", flush=True)


if __name__ == "__main__":
    main()
