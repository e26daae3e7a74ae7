"""Private parts of PyTorch's data loaders: what a worker process is, without the process.

Source: torch/utils/data/_utils/worker.py, ``_worker_loop``, and dataloader.py (2.13).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import IterDataPipe, MapDataPipe, _utils
from torch.utils.data import dataloader as _dataloader
from torch.utils.data._utils import worker as _worker

Pass = _dataloader._BaseDataLoaderIter
"""One pass over a loader: its sampler, the seed of its workers, its count."""
_PIPES = (IterDataPipe, MapDataPipe)


def is_iterable(loader: Any) -> bool:
    """It (or a pass over it) reads a dataset without places."""
    return loader._dataset_kind == _dataloader._DatasetKind.Iterable  # type: ignore[no-any-return]


def pinned(data: Any, loading: Any) -> Any:
    """A batch as the thread that pins memory hands it on."""
    return _utils.pin_memory.pin_memory(data, loading._pin_memory_device)


def seeds(base: int, number: int) -> tuple[int, Any]:
    """What a worker seeds Python's and PyTorch's random numbers with, and what NumPy's."""
    return base + number, _worker._generate_state(base, number)


def info(number: int, base: int, loader: Any, dataset: Any) -> Any:
    """What ``get_worker_info`` answers in a worker."""
    return _worker.WorkerInfo(
        id=number, num_workers=loader.num_workers, seed=base + number, dataset=dataset
    )


def first_call(loader: Any, loading: Any) -> Callable[[int], None] | None:
    """What a worker calls before it loads."""
    if isinstance(loader.dataset, _PIPES):
        return functools.partial(
            _dataloader._sharding_worker_init_fn,
            loader.worker_init_fn,
            loading._world_size,
            loading._rank,
        )
    return loader.worker_init_fn  # type: ignore[no-any-return]


def is_pipe(dataset: Any) -> bool:
    """It is one of PyTorch's data pipes, a graph of datasets."""
    return isinstance(dataset, _PIPES)


def fetcher(loader: Any, dataset: Any) -> Any:
    """What gathers batches of a dataset."""
    return _dataloader._DatasetKind.create_fetcher(
        loader._dataset_kind,
        dataset,
        loader._auto_collation,
        loader.collate_fn,
        loader.drop_last,
    )


@contextlib.contextmanager
def within(worker: Any) -> Iterator[None]:
    """Code inside is a worker's."""
    before, _worker._worker_info = _worker._worker_info, worker
    try:
        yield
    finally:
        _worker._worker_info = before
