"""Data loaders of a simulated run: what workers would load is loaded where the script runs.

A worker process would have no GPU, and there is no hurry. What comes of it is kept: whose turn it
is, its copy of the dataset, its number, and its random numbers, of which those of the script are
independent.

Source: torch/utils/data/_utils/worker.py, ``_worker_loop``, and dataloader.py,
``_MultiProcessingDataLoaderIter`` (2.13).
"""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch.utils.data

from memcalc.script import torch_private_loaders as loaders
from memcalc.script.patches import Patches

try:
    from numpy import random as numpy_random
except ImportError:
    # PyTorch runs without NumPy, and so do its workers.
    numpy_random = None  # type: ignore[assignment]
_GENERATORS = (
    *(random.Random, torch.Generator),
    *((numpy_random.Generator, numpy_random.RandomState) if numpy_random else ()),
)


def install(patches: Patches) -> None:
    """Load without worker processes."""

    def iterator(original: Any, self: Any) -> Any:
        return InTurn(self) if self.num_workers else original(self)

    patches.wrap(torch.utils.data.DataLoader, "_get_iterator", iterator)


class InTurn(loaders.Pass):
    """One pass over a loader, as its workers would load it.

    Args:
        loader: has workers.
    """

    def __init__(self, loader: Any) -> None:
        super().__init__(loader)
        self._workers = [
            _Worker(number, int(self._base_seed), loader, loaders.first_call(loader, self))
            for number in range(loader.num_workers)
        ]
        self._begin()

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        """Another pass of workers that persist."""
        super()._reset(loader, first_iter)
        self._begin()

    def _begin(self) -> None:
        for worker in self._workers:
            worker.begin()
        self._turns = itertools.cycle(self._workers)

    def _next_data(self) -> Any:
        while True:
            places = next(self._sampler_iter)
            worker = next((one for one in self._round() if not one.ended), None)
            if worker is None:
                raise StopIteration
            try:
                data = worker.fetch(places)
            except StopIteration:
                if not loaders.is_iterable(self):
                    raise
                worker.ended = True
                continue
            return loaders.pinned(data, self) if self._pin_memory else data

    def _round(self) -> Iterator[_Worker]:
        return itertools.islice(self._turns, len(self._workers))

    def _shutdown_workers(self) -> None:
        """Libraries end the workers of a loader that they leave."""


class _Worker:
    """What one worker process has of its own."""

    def __init__(
        self, number: int, base: int, loader: Any, first: Callable[[int], None] | None
    ) -> None:
        self._loader = loader
        self.ended = False
        self._info = loaders.info(number, base, loader, _own(loader.dataset))
        outside = _random_state()
        python, numpy = loaders.seeds(base, number)
        random.seed(python)
        torch.default_generator.manual_seed(python)
        if numpy_random is not None:
            numpy_random.seed(numpy)
        self._random = _random_state()
        _put(outside)
        if first is not None:
            with self._at_work():
                first(number)

    def begin(self) -> None:
        """Start over with the dataset."""
        self.ended = False
        with self._at_work():
            self._fetcher = loaders.fetcher(self._loader, self._info.dataset)

    def fetch(self, places: Any) -> Any:
        """Load a batch."""
        with self._at_work():
            return self._fetcher.fetch(places)

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        outside = _random_state()
        _put(self._random)
        try:
            with loaders.within(self._info):
                yield
        finally:
            self._random = _random_state()
            _put(outside)


def _random_state() -> tuple[Any, ...]:
    numpy = numpy_random.get_state() if numpy_random is not None else None
    return random.getstate(), torch.random.get_rng_state(), numpy


def _put(state: tuple[Any, ...]) -> None:
    random.setstate(state[0])
    torch.random.set_rng_state(state[1])
    if numpy_random is not None:
        numpy_random.set_state(state[2])


def _own(dataset: Any) -> Any:
    """A worker's own dataset: what it sets there, and what it draws by, is nobody else's."""
    if loaders.is_pipe(dataset):
        return copy.deepcopy(dataset)
    try:
        own = copy.copy(dataset)
        for name, value in list(vars(own).items()):
            if isinstance(value, _GENERATORS):
                setattr(own, name, _same_again(value))
            elif isinstance(value, torch.utils.data.Dataset):
                setattr(own, name, _own(value))
    except (TypeError, AttributeError, NotImplementedError):
        # A fork copies anything; what Python cannot copy is shared here.
        return dataset
    return own


def _same_again(generator: Any) -> Any:
    if isinstance(generator, torch.Generator):
        return generator.clone_state()
    return copy.deepcopy(generator)
