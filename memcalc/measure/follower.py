"""Follows a program on a real device, as the simulated GPU's programs are followed."""

from collections.abc import Callable
from typing import Any, Self

import torch

from memcalc.engine.compiling import hide_hooks
from memcalc.engine.follow import deepspeed
from memcalc.engine.follow.phases import Observer, Phases
from memcalc.engine.follow.steps import Steps
from memcalc.engine.patches import Patches
from memcalc.measure.readings import GpuCounters, HostCounters
from memcalc.records.measurement import PhaseReading
from memcalc.records.trace import Phase

Guard = Callable[[Any], Any]
"""Puts something around an object that is called while the program runs."""


class Follower(Patches):
    """Reads the memory of a program phase by phase, from the moment that it is entered."""

    def __init__(
        self,
        device: str,
        observer: Observer,
        *,
        told: Callable[[PhaseReading], None] = lambda one: None,
        only: torch.optim.Optimizer | None = None,
        guard: Guard = lambda one: one,
    ) -> None:
        """Make it; ``only`` the steps of this optimizer count, or those of any."""
        super().__init__()
        self.counters = GpuCounters(told) if device == "cuda" else HostCounters(told)
        self.steps = Steps(only=only)
        self.phases = Phases(guard(self.counters), self.steps, guard(observer))

    def __enter__(self) -> Self:
        if isinstance(self.counters, GpuCounters):
            torch.cuda.init()
            self.counters.install(self)
        self.steps.install(self)
        self.phases.install(self)
        deepspeed.follow(self, self.steps, self.phases)
        hide_hooks(self)
        self.phases.begin(Phase.LOAD)
        return self

    def __exit__(self, *error: object) -> None:
        self.undo()
        self.counters.end()
