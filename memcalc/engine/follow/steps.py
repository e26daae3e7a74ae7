"""Counts optimizer steps and ends the program after the requested number."""

import contextlib
import functools
import gc
import signal
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.optim import optimizer as optimizers

from memcalc.engine.notes import held_by
from memcalc.engine.patches import Patches

_ENOUGH = signal.SIGURG
"""Tells the main thread, wherever it waits, that another has made enough steps."""
BY_HAND = 0
"""Key of the updates that a program makes without an optimizer."""


class EnoughStepsError(BaseException):
    """The program has made the steps that were asked for; no script catches this by accident."""


class Steps:
    """Counts for every optimizer, or for ``only`` one.

    Before one goes beyond ``wanted`` steps (0: any), the program ends.
    """

    def __init__(self, wanted: int = 0, only: Any = None) -> None:
        self.most = 0
        """Steps of the optimizer that has made most."""
        self.made: dict[int, int] = {}
        self.has_optimizer = False
        """The program has made an optimizer."""
        self.begins: Callable[[Any], None] = lambda owner: None
        """Told that an optimizer begins its update."""
        self.ends: Callable[[Any, int], None] = lambda owner, steps: None
        """Told that an optimizer has made so many updates."""
        self.updated_by_hand: Callable[[], None] = lambda: None
        """Told that parameters were changed in place after a backward, by no optimizer."""
        self.settle: Callable[[], None] = lambda: None
        """Called before each step: collectives of before it are done."""
        self._wanted, self._only = wanted, only
        self._driven = 0
        """How many libraries drive optimizers of theirs at this moment: those make no steps."""
        self._alive: dict[int, weakref.ref[Any]] = {}
        self._own: set[type] = set()

    def install(self, patches: Patches) -> None:
        """Register hooks that count the steps of all optimizers."""
        self._patches = patches
        for hook in (
            optimizers.register_optimizer_step_pre_hook(
                lambda one, *_: self._begin_step(one) if self._counts(one) else None
            ),
            optimizers.register_optimizer_step_post_hook(
                lambda one, *_: self._end_step(one) if self._counts(one) else None
            ),
        ):
            patches.also(hook.remove)
        patches.wrap(torch.optim.Optimizer, "__init__", self._init_optimizer)
        if self._wanted:
            patches.wrap(threading, "excepthook", _handle_thread_exception)
        if self._wanted and threading.current_thread() is threading.main_thread():
            before = signal.signal(_ENOUGH, _raise_enough_steps)
            patches.also(functools.partial(signal.signal, _ENOUGH, before))
        self._count_replays(patches)

    def _counts(self, optimizer: Any) -> bool:
        """Return True if a step of this optimizer counts now."""
        return not self._driven and (self._only is None or optimizer is self._only)

    def _init_optimizer(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self.has_optimizer = True
        original(*args, **kwargs)

    @contextlib.contextmanager
    def pause_counting(self) -> Iterator[None]:
        """Count no steps in this context: a library tries its optimizers before it trains."""
        self._driven += 1
        try:
            yield
        finally:
            self._driven -= 1

    @contextlib.contextmanager
    def one(self, owner: Any) -> Iterator[None]:
        """Count a step of a wrapper that drives optimizers, and none of theirs.

        Raises:
            EnoughStepsError: it has made the number of steps asked for.
        """
        self._begin_step(owner)
        with self.pause_counting():
            yield
        self._end_step(owner)

    def find_own(self) -> None:
        """Look for optimizers that are none of PyTorch's: they step, and clear gradients."""
        kinds = {kind for kind in set(map(type, gc.get_objects())) if _may_step(kind)}
        for kind in kinds - self._own:
            if any(_holds_parameters(one) for one in gc.get_objects() if type(one) is kind):
                self._own.add(kind)
                self.has_optimizer = True
                self._patches.wrap(kind, "step", self._own_step)

    def _own_step(self, original: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        """Count a step of an optimizer that is not PyTorch's."""
        if self._driven:
            return original(optimizer, *args, **kwargs)
        with self.one(optimizer):
            return original(optimizer, *args, **kwargs)

    def by_hand(self) -> None:
        """Count an update that the program made itself, between two backwards.

        Raises:
            EnoughStepsError: it has made the number of updates asked for.
        """
        self._raise_if_enough(BY_HAND)
        self.made[BY_HAND] = self.made.get(BY_HAND, 0) + 1
        self.most = max(self.most, self.made[BY_HAND])
        self.updated_by_hand()

    def _raise_if_enough(self, key: int) -> None:
        if self._wanted and self.made.get(key, 0) >= self._wanted:
            raise EnoughStepsError

    def _begin_step(self, owner: Any) -> None:
        """Handle the start of a counted step; raise EnoughStepsError if it is one too many."""
        self.settle()
        self._raise_if_enough(id(owner))
        self.begins(owner)

    def _end_step(self, owner: Any) -> None:
        key = id(owner)
        self.made[key] = self.made.get(key, 0) + 1
        self._drop_count_with(owner)
        self.most = max(self.most, self.made[key])
        self.ends(owner, self.made[key])

    def _drop_count_with(self, owner: Any) -> None:
        """Drop the count of an optimizer when it is freed: its ID may be reused."""
        key = id(owner)
        if key not in self._alive:
            with contextlib.suppress(TypeError):
                self._alive[key] = weakref.ref(
                    owner, lambda _: (self._alive.pop(key, None), self.made.pop(key, None))
                )

    def _count_replays(self, patches: Patches) -> None:
        """Count the steps that a CUDA graph has captured whenever it is replayed."""
        graph: Any = torch.cuda.CUDAGraph
        before: dict[int, dict[int, int]] = {}
        captured: dict[int, list[int]] = {}

        def begin_capture(original: Any, one: Any, *args: Any, **kwargs: Any) -> None:
            original(one, *args, **kwargs)
            before[id(one)] = dict(self.made)

        def end_capture(original: Any, one: Any) -> None:
            original(one)
            were = before.pop(id(one), {})
            captured[id(one)] = [key for key, made in self.made.items() if made != were.get(key)]

        def replay(original: Any, one: Any) -> None:
            owners = [self._alive[key]() for key in captured.get(id(one), ()) if key in self._alive]
            for owner in owners:
                self._begin_step(owner)
            original(one)
            for owner in owners:
                self._end_step(owner)

        patches.wrap(graph, "capture_begin", begin_capture)
        patches.wrap(graph, "capture_end", end_capture)
        patches.wrap(graph, "replay", replay)


def _handle_thread_exception(original: Any, args: Any) -> None:
    """End the program when a thread has trained for enough steps."""
    if args.exc_type is not EnoughStepsError:
        original(args)
    elif signal.getsignal(_ENOUGH) is _raise_enough_steps:
        signal.pthread_kill(threading.main_thread().ident or 0, _ENOUGH)


def _raise_enough_steps(*_: Any) -> None:
    raise EnoughStepsError


def _holds_parameters(one: Any) -> bool:
    try:
        return next(held_by(one), None) is not None
    except Exception:
        return False  # Objects of anybody's raise what they like.


def _may_step(kind: type) -> bool:
    """Return True for a class outside PyTorch with an optimizer's methods."""
    if issubclass(kind, torch.optim.Optimizer | torch.nn.Module | type):
        return False
    return callable(getattr(kind, "step", None)) and callable(getattr(kind, "zero_grad", None))
