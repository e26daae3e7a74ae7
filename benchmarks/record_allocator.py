"""Record what PyTorch's real caching allocator does with random requests, under many settings.

Each scenario runs in a child process and becomes one gzipped JSON file: the operations, every
counter of ``torch.cuda.memory_stats`` at each checkpoint, a digest of every segment and block
there, and the history of segments. ``tests/allocator/test_recorded.py`` replays them.

Usage: ``python benchmarks/record_allocator.py FOLDER [NAME...]``, with a Python that
has torch for CUDA.
Without a GPU, a stand-in driver will do; scenarios that need a small device set ``STANDIN_TOTAL``
and are left out on a real one.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One run: settings, device, and what the random requests look like."""

    conf: str = ""
    device_bytes: int | None = None
    """Size of the stand-in device; ``None``: whatever there is."""
    streams: int = 1
    share: float = 0.0
    """Part of the storages that other streams use too (``record_stream``)."""
    live: int = 6 * GIB
    """Bytes kept alive, roughly."""
    largest: int = 700 * MIB
    operations: int = 1500
    seed: int = 0


SCENARIOS = {
    "default": Scenario(),
    "max-split": Scenario(conf="max_split_size_mb:64", device_bytes=4 * GIB, live=3 * GIB),
    "max-split-128": Scenario(conf="max_split_size_mb:128,max_non_split_rounding_mb:64", seed=1),
    "roundup": Scenario(conf="roundup_power2_divisions:8", seed=2),
    "roundup-list": Scenario(conf="roundup_power2_divisions:[4:4,64:2,256:8,>:16]", seed=3),
    "expandable": Scenario(conf="expandable_segments:True", seed=4),
    "expandable-small": Scenario(
        conf="expandable_segments:True", device_bytes=3 * GIB, live=3 * GIB, streams=2, seed=5
    ),
    "small-device": Scenario(device_bytes=2 * GIB, live=2 * GIB, seed=6),
    "fraction": Scenario(
        conf="per_process_memory_fraction:0.25", device_bytes=8 * GIB, live=2 * GIB, seed=7
    ),
    "collect": Scenario(
        conf="garbage_collection_threshold:0.5,per_process_memory_fraction:0.5",
        device_bytes=8 * GIB,
        live=2 * GIB,
        seed=8,
    ),
    "collect-max-split": Scenario(
        conf="garbage_collection_threshold:0.6,max_split_size_mb:32,per_process_memory_fraction:0.75",
        device_bytes=4 * GIB,
        live=2 * GIB,
        streams=2,
        seed=9,
    ),
    "streams": Scenario(streams=3, device_bytes=5 * GIB, live=4 * GIB, seed=10),
    "shared": Scenario(streams=2, share=0.3, device_bytes=5 * GIB, live=4 * GIB, seed=11),
    "shared-expandable": Scenario(
        conf="expandable_segments:True", streams=2, share=0.3, live=3 * GIB, seed=12
    ),
    "shared-streams": Scenario(streams=4, share=0.5, live=2 * GIB, seed=15),
    "large-segment": Scenario(conf="large_segment_size_mb:64", seed=13),
    "large-segment-expandable": Scenario(
        conf="large_segment_size_mb:32,expandable_segments:True,roundup_power2_divisions:4", seed=14
    ),
}


class TraceRecorder:
    """Drives the real allocator with tensors and writes down what happened."""

    def __init__(self, scenario: Scenario) -> None:
        import torch

        self.torch, self.scenario = torch, scenario
        self.choose = random.Random(scenario.seed)
        torch.cuda.init()
        torch.cuda.memory._record_memory_history(enabled="all", context=None, max_entries=10**6)
        side = [torch.cuda.Stream() for _ in range(scenario.streams - 1)]
        self.streams = [torch.cuda.default_stream(), *sorted(side, key=lambda s: s.cuda_stream)]
        self.rank = {stream.cuda_stream: at for at, stream in enumerate(self.streams)}
        self.live: dict[int, Any] = {}
        self.shared: set[int] = set()
        self.operations: list[list[Any]] = []
        self.keys: list[str] = []
        self.rows: list[list[int]] = []
        self.digests: list[str] = []

    def run(self) -> dict[str, Any]:
        """Run the scenario and return the recording."""
        self.checkpoint()
        for number in range(1, self.scenario.operations + 1):
            self.step()
            if number % 25 == 0:
                self.checkpoint()
        for key in sorted(self.live):
            self.free(key)
        self.checkpoint()
        self.operations.append(["empty_cache"])
        self.torch.cuda.empty_cache()
        self.checkpoint()
        properties = self.torch.cuda.get_device_properties(0)
        return {
            "scenario": asdict(self.scenario),
            "torch": self.torch.__version__,
            "device": properties.name,
            "device_bytes": properties.total_memory,
            "operations": self.operations,
            "counters": self.keys,
            "checkpoints": self.rows,
            "digests": self.digests,
            "history": self.history(),
        }

    def step(self) -> None:
        """Do one random thing."""
        held = sum(tensor.numel() for tensor in self.live.values())
        dice = self.choose.random()
        if dice < 0.004:
            self.operations.append(["empty_cache"])
            self.torch.cuda.empty_cache()
        elif dice < 0.008:
            self.operations.append(["reset_peaks"])
            self.torch.cuda.reset_peak_memory_stats()
        elif self.live and self.choose.random() < 0.5 * held / self.scenario.live + 0.2:
            self.free(self.choose.choice(sorted(self.live)))
        else:
            self.allocate()

    def allocate(self) -> None:
        """Make a tensor of a random size on a random stream."""
        key, at = len(self.operations), self.choose.randrange(len(self.streams))
        low, high = self.choose.choice(
            ((1, 4096), (4096, 2 * MIB), (MIB, 12 * MIB), (10 * MIB, 200 * MIB)) * 8
            + ((200 * MIB, self.scenario.largest),)
        )
        size = self.choose.randint(low, high)
        if self.choose.random() < 0.3:
            size = 1 << (size.bit_length() - 1)
        try:
            with self.torch.cuda.stream(self.streams[at]):
                self.live[key] = self.torch.empty(size, dtype=self.torch.uint8, device="cuda")
            self.operations.append(["alloc", size, at])
        except self.torch.OutOfMemoryError:
            self.operations.append(["oom", size, at])
            return
        if self.choose.random() < self.scenario.share:
            other = (at + 1) % len(self.streams)
            self.operations.append(["used_by", key, other])
            self.live[key].record_stream(self.streams[other])
            self.shared.add(key)

    def free(self, key: int) -> None:
        """Drop a tensor; let other streams catch up at once, so that timing plays no part."""
        self.operations.append(["free", key])
        del self.live[key]
        if key in self.shared:
            self.torch.cuda.synchronize()

    def checkpoint(self) -> None:
        """Write down every counter, and a digest of all segments."""
        self.operations.append(["checkpoint"])
        stats = self.torch.cuda.memory_stats()
        self.keys = self.keys or sorted(stats)
        self.rows.append([stats.get(key, 0) for key in self.keys])
        segments = [
            (
                segment["address"],
                self.rank[segment["stream"]],
                segment["segment_type"],
                segment["is_expandable"],
                [
                    (block["address"], block["size"], block["requested_size"], block["state"])
                    for block in segment["blocks"]
                ],
            )
            for segment in self.torch.cuda.memory_snapshot()
        ]
        self.digests.append(hashlib.sha256(repr(segments).encode()).hexdigest()[:16])

    def history(self) -> list[list[Any]]:
        """Segments taken and given back, and failures, as PyTorch recorded them."""
        traces = self.torch.cuda.memory._snapshot()["device_traces"][0]
        return [
            [
                entry["action"],
                entry["device_free"] if entry["action"] == "oom" else entry["addr"],
                entry["size"],
                self.rank[entry["stream"]],
            ]
            for entry in traces
            if entry["action"].startswith("segment_") or entry["action"] == "oom"
        ]


def record(name: str) -> None:
    """Run one scenario in this process and print the recording."""
    warnings.simplefilter("ignore")
    print(json.dumps(TraceRecorder(SCENARIOS[name]).run(), separators=(",", ":")))
    sys.stdout.flush()
    os._exit(0)  # a stand-in driver cannot be torn down


def main() -> None:
    folder = Path(sys.argv[1])
    stand_in = "STANDIN_PYTHON" in os.environ
    folder.mkdir(parents=True, exist_ok=True)
    for name, scenario in SCENARIOS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        environment = dict(os.environ, PYTORCH_ALLOC_CONF=scenario.conf)
        if scenario.device_bytes is not None and not stand_in:
            print(f"{name}: left out, it needs a device of {scenario.device_bytes} bytes")
            continue
        if scenario.device_bytes is not None:
            environment["STANDIN_TOTAL"] = str(scenario.device_bytes)
        done = subprocess.run(
            [sys.executable, __file__, "--one", name],
            env=environment,
            stdout=subprocess.PIPE,
            check=True,
        )
        made = json.loads(done.stdout)
        packed = gzip.compress(done.stdout.strip(), 9, mtime=0)
        path = folder / f"{name}-torch{'.'.join(made['torch'].split('.')[:2])}.json.gz"
        path.write_bytes(packed)
        ooms = sum(operation[0] == "oom" for operation in made["operations"])
        print(f"{path.name}: {len(packed):,} bytes, {ooms} out of memory")


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        record(sys.argv[2])
    else:
        main()
