"""Record real memory snapshots, with the real levels after every operation beside them.

Usage: ``python benchmarks/record_snapshots.py FOLDER``, with a Python that has torch for CUDA (a
stand-in driver will do). Each file is a gzipped pickle of a dict: ``snapshot`` as
``torch.cuda.memory._snapshot()`` returned it, ``levels`` as rows of entries recorded so far,
requested, allocated, active and reserved bytes. ``tests/allocator/test_snapshot.py`` replays them.
"""

from __future__ import annotations

import gzip
import os
import pickle
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

from record_allocator import MIB, SCENARIOS, Scenario, TraceRecorder

SHORT = {"operations": 300, "largest": 300 * MIB}
RUNS: dict[str, Scenario] = {
    "training": Scenario(),
    "training-expandable": Scenario(conf="expandable_segments:True"),
    "random": replace(SCENARIOS["default"], **SHORT),
    "random-expandable": replace(SCENARIOS["expandable-small"], **SHORT),
    "random-max-split": replace(SCENARIOS["max-split"], live=4 << 30, **SHORT),
    "random-collect": replace(SCENARIOS["collect"], operations=400),
    "random-shared": replace(SCENARIOS["shared"], **SHORT),
    "middle": replace(SCENARIOS["default"], **SHORT, seed=50),
}


class Sampler(TraceRecorder):
    """A recorder that also reads the levels after every operation."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(scenario)
        self.levels: list[tuple[int, ...]] = []

    def sample(self) -> None:
        """Read the real levels, and how far the history has come."""
        stats = self.torch.cuda.memory_stats()
        entries = len(self.torch.cuda.memory._snapshot()["device_traces"][0])
        names = ("requested", "allocated", "active", "reserved")
        self.levels.append((entries, *(stats[f"{name}_bytes.all.current"] for name in names)))

    def random(self, *, middle: bool) -> None:
        """Random requests; the recording starts half-way when ``middle``."""
        for number in range(self.scenario.operations):
            if middle and number == self.scenario.operations // 2:
                history = self.torch.cuda.memory._record_memory_history
                history(enabled=None)
                history(enabled="all", context=None, max_entries=10**6)
            self.step()
            self.sample()

    def training(self) -> None:
        """Three steps of a small network, on the autograd thread and all."""
        torch = self.torch
        layers = [torch.nn.Linear(1024, 1024, device="cuda") for _ in range(6)]
        model = torch.nn.Sequential(*(part for x in layers for part in (x, torch.nn.GELU())))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        self.sample()
        for _ in range(3):
            loss = model(torch.randn(512, 1024, device="cuda")).square().mean()
            self.sample()
            loss.backward()
            self.sample()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            self.sample()
            optimizer.zero_grad()
            self.sample()


def record(name: str, path: Path) -> None:
    """Run one scenario in this process and write its file."""
    warnings.simplefilter("ignore")
    sampler = Sampler(RUNS[name])
    if name.startswith("training"):
        sampler.training()
    else:
        sampler.random(middle=name == "middle")
    made: dict[str, Any] = {
        "conf": RUNS[name].conf,
        "torch": sampler.torch.__version__,
        "levels": sampler.levels,
        "snapshot": sampler.torch.cuda.memory._snapshot(),
    }
    target = path / f"{name}-torch{'.'.join(made['torch'].split('.')[:2])}.pickle.gz"
    target.write_bytes(gzip.compress(pickle.dumps(made), 9, mtime=0))
    print(f"{target.name}: {target.stat().st_size:,} bytes")
    sys.stdout.flush()
    os._exit(0)  # a stand-in driver cannot be torn down


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, scenario in RUNS.items():
        environment = dict(os.environ, PYTORCH_ALLOC_CONF=scenario.conf)
        if scenario.device_bytes is not None:
            environment["STANDIN_TOTAL"] = str(scenario.device_bytes)
        command = [sys.executable, __file__, "--one", name, str(folder)]
        subprocess.run(command, env=environment, check=True)


if __name__ == "__main__":
    if sys.argv[1] == "--one":
        record(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
