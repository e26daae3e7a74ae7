"""Runs many plans in several child processes, within the machine's memory."""

import contextlib
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Self, TypeVar

from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation.client import Client, warm_engines
from memcalc.records.plan import Plan

T = TypeVar("T")

WORKER_BYTES = 1 << 30
"""Room that one worker is given: 0.4 GB were seen with PyTorch's CPU build, more with CUDA's."""
_CGROUP = Path("/sys/fs/cgroup")


class Pool(contextlib.ExitStack):
    """Children that trace side by side; they are kept, with what they built, for what comes next.

    A child starts when there is work for it and ends with the pool; its parent process goes on.
    Threads may share a pool.
    """

    def __init__(self, workers: int | None = None, timeout: float = math.inf) -> None:
        """``workers``: most processes at a time; ``None``: as cores and free memory allow.

        ``timeout``: seconds after which a run is ended.
        """
        super().__init__()
        self._timeout = timeout
        self.workers = workers if workers is not None else room()
        self._clients: list[Client] = []
        self._changed = threading.Condition()

    def __enter__(self) -> Self:
        self._engines = self.enter_context(warm_engines)
        for _ in range(max(self.workers, 1)):
            self._clients.append(self.enter_context(Client(self._engines, self._timeout)))
        self._idle = list(self._clients)
        return self

    @contextlib.contextmanager
    def client(self) -> Iterator[Client]:
        """The first idle child, which nobody else asks meanwhile."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._idle))
            one = min(self._idle, key=self._clients.index)
            self._idle.remove(one)
        try:
            yield one
        finally:
            with self._changed:
                self._idle.append(one)
                self._changed.notify()

    @contextlib.contextmanager
    def threads(self) -> Iterator[ThreadPoolExecutor]:
        """One thread for each child; Ctrl-C does not wait for their answers."""
        with ThreadPoolExecutor(len(self._clients)) as threads:
            try:
                yield threads
            except (KeyboardInterrupt, SystemExit):
                self._engines.close()
                raise

    def each(
        self, plans: Sequence[Plan], ask: Callable[[Client, Plan], T]
    ) -> Iterator[T | MemcalcError]:
        """Ask something of every plan; answers come in their order, each as soon as it is known."""
        if min(self.workers, len(plans)) <= 1:
            for plan in plans:
                with self.client() as client:
                    answer = ask(client, plan)
                yield answer
            return
        answers: list[Future[T | MemcalcError]] = [Future() for _ in plans]
        waiting = dict(enumerate(plans))
        lock = threading.Lock()
        for number in range(min(self.workers, len(plans))):
            arguments = (waiting, lock, ask, answers, number == 0)
            threading.Thread(target=self._work, args=arguments, daemon=True).start()
        try:
            for found in answers:
                yield found.result()
        finally:
            with lock:
                waiting.clear()

    def _work(
        self,
        waiting: dict[int, Plan],
        lock: threading.Lock,
        ask: Callable[[Client, Plan], T],
        answers: Sequence[Future[T | MemcalcError]],
        leads: bool,
    ) -> None:
        """Have one child answer waiting plans; those of the model that it built last come first.

        The first child takes plans from the front, because their answers are awaited first. Others
        take them from the back, where slow plans stand, so that none of these is left for the end.
        """
        model = ""
        with self.client() as client:
            while True:
                with lock:
                    if not waiting:
                        return
                    left = list(waiting) if leads else list(reversed(waiting))
                    index = next((n for n in left if waiting[n].model == model), left[0])
                    plan = waiting.pop(index)
                model = plan.model
                try:
                    answers[index].set_result(ask(client, plan))
                except Exception as error:  # Whoever waits for it must hear of it.
                    told = EstimateError(f"The simulated run did not start: {error}.")
                    answers[index].set_result(told)


def room() -> int:
    """How many workers the machine has cores and free memory for; at least one."""
    return max(1, min(len(os.sched_getaffinity(0)), free_memory() // WORKER_BYTES))


def free_memory() -> int:
    """Bytes that new processes may take: of the machine, or of the container if that is less."""
    import psutil

    left = _left_in_container()
    available: int = psutil.virtual_memory().available
    return available if left is None else min(available, left)


def _left_in_container() -> int | None:
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        return limit - int((_CGROUP / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        # No limit ("max"), or not version 2 of control groups.
        return None
