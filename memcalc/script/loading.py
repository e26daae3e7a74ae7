"""Data loaders of a simulated run: everything is loaded where the script runs."""

from __future__ import annotations

from typing import Any

import torch.utils.data

from memcalc.script.patches import Patches

_OF_WORKERS = ("prefetch_factor", "persistent_workers", "multiprocessing_context", "timeout")


def install(patches: Patches) -> None:
    """Load without worker processes: they would have no GPU, and there is no hurry."""

    def alone(original: Any, self: Any, *args: Any, **kwargs: Any) -> None:
        import inspect

        given = inspect.signature(original).bind(self, *args, **kwargs).arguments
        given.pop("self")
        for name in _OF_WORKERS:
            given.pop(name, None)
        given["num_workers"] = 0
        original(self, **given)

    patches.wrap(torch.utils.data.DataLoader, "__init__", alone)
