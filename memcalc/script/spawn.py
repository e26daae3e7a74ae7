"""``torch.multiprocessing.spawn``: the first process runs here.

This file needs the standard library alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAMES = ("start_processes", "spawn")
"""What is called so in ``torch.multiprocessing.spawn``, and by that name beside it."""


class Ended:
    """Stands for processes that have all ended well."""

    processes: tuple[Any, ...] = ()

    def join(self, *args: Any, **kwargs: Any) -> bool:
        """They have."""
        return True

    def pids(self) -> list[int]:
        """None are left."""
        return []


def instead(say: Callable[[int], None]) -> Callable[..., Ended | None]:
    """What takes the place of a function that starts processes.

    Args:
        say: told how many there would be, before the first of them runs.
    """

    def start(
        fn: Callable[..., Any],
        args: Any = (),
        nprocs: int = 1,
        join: bool = True,
        *rest: Any,
        **more: Any,
    ) -> Ended | None:
        say(nprocs)
        fn(0, *args)
        return None if join else Ended()

    return start
