"""Runs many plans in several child processes, within the machine's memory."""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation.client import Client, warm_engines
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction

T = TypeVar("T")

WORKER_BYTES = 1 << 30
"""Room that one worker is given: 0.4 GB were seen with PyTorch's CPU build, more with CUDA's."""
_CGROUP = Path("/sys/fs/cgroup")


class Pool:
    """Children that trace side by side; they are kept, with what they built, for what comes next.

    A child starts when there is work for it. What forks it outlives the pool.
    """

    def __init__(self, workers: int | None = None) -> None:
        """Ask nothing yet.

        Args:
            workers: at most so many processes; ``None``: what cores and free memory allow.
        """
        self.workers = workers if workers is not None else room()
        self._stack = contextlib.ExitStack()
        self._clients: list[Client] = []

    def __enter__(self) -> Pool:
        self._engines = self._stack.enter_context(warm_engines)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def clients(self, count: int) -> list[Client]:
        """So many of its children, the same ones each time."""
        while len(self._clients) < count:
            self._clients.append(self._stack.enter_context(Client(self._engines)))
        return self._clients[:count]

    def predictions(
        self, plans: Sequence[Plan], *, counted: bool = False
    ) -> Iterator[Prediction | MemcalcError]:
        """Run plans; answers come in their order, each as soon as it and all before are known."""
        return self.each(plans, functools.partial(Client.ask, counted=counted))

    def each(
        self, plans: Sequence[Plan], ask: Callable[[Client, Plan], T]
    ) -> Iterator[T | MemcalcError]:
        """Ask something of every plan, those of one model of the same child as far as that goes."""
        shares = [list(share) for share in split([plan.model for plan in plans], self.workers)]
        clients = self.clients(len(shares))
        if len(shares) == 1:
            for plan in plans:
                yield ask(clients[0], plan)
            return
        answers: list[Future[T | MemcalcError]] = [Future() for _ in plans]
        lock = threading.Lock()
        for number, client in enumerate(clients):
            arguments = (client, number, shares, lock, plans, ask, answers)
            threading.Thread(target=_work, args=arguments, daemon=True).start()
        try:
            for answer in answers:
                yield answer.result()
        finally:
            with lock:
                for share in shares:
                    share.clear()


def _work(
    client: Client,
    number: int,
    shares: list[list[int]],
    lock: threading.Lock,
    plans: Sequence[Plan],
    ask: Callable[[Client, Plan], T],
    answers: Sequence[Future[T | MemcalcError]],
) -> None:
    """Do one's own share from its front, and then what is left of the longest from its end."""
    while True:
        with lock:
            longest = max(shares, key=len)
            if not longest:
                return
            index = shares[number].pop(0) if shares[number] else longest.pop()
        try:
            answers[index].set_result(ask(client, plans[index]))
        except Exception as error:  # Whoever waits for it must hear of it.
            answers[index].set_result(EstimateError(f"The simulated run did not start: {error}."))


@contextlib.contextmanager
def asking(clients: Sequence[Client]) -> Iterator[ThreadPoolExecutor]:
    """Threads that ask clients at once; Ctrl-C does not wait for what they were asked."""
    with ThreadPoolExecutor(len(clients)) as threads:
        try:
            yield threads
        except (KeyboardInterrupt, SystemExit):
            for client in clients:
                client.abandon()
            raise


def split(models: Sequence[str], workers: int) -> list[list[int]]:
    """Share plans out: evenly, those of one model together as far as that allows.

    Args:
        models: the model of each plan.
        workers: at most so many shares.

    Returns:
        Indices of the plans, one list a worker, none empty.
    """
    count = max(1, min(workers, len(models)))
    first = {model: index for index, model in reversed(list(enumerate(models)))}
    order = sorted(range(len(models)), key=lambda index: (first[models[index]], index))
    size, extra = divmod(len(order), count)
    shares, at = [], 0
    for number in range(count):
        end = at + size + (number < extra)
        shares.append(order[at:end])
        at = end
    return [share for share in shares if share]


def room() -> int:
    """How many workers the machine has cores and free memory for; at least one."""
    cores = len(os.sched_getaffinity(0))
    return max(1, min(cores, free_memory() // WORKER_BYTES))


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
