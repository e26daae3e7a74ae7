"""Sets up everything that follows a program in this process."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from memcalc.engine.compiling import Compiling
from memcalc.engine.cudnn import loading
from memcalc.engine.patches import Patches
from memcalc.engine.scripts import held
from memcalc.engine.scripts.answer import Recorded, recorded
from memcalc.engine.scripts.counters import Counters
from memcalc.engine.scripts.group import Groups
from memcalc.engine.scripts.models import Models
from memcalc.engine.scripts.phases import Phases
from memcalc.engine.scripts.steps import BY_HAND, Steps
from memcalc.engine.values import Values

_BY_HAND = (
    "without an optimizer, the script's change of its parameters between two backward passes is "
    "taken for a step"
)
_NO_CUDNN = "cuDNN is off: convolutions run PyTorch's own kernels"


class Session:
    """Follows what runs in this process, over the stub driver.

    Args:
        steps: when an optimizer is about to go beyond these, the program ends; 0: never.
        one_of_many: other processes train with this one.
    """

    def __init__(self, steps: int = 0, *, one_of_many: bool = False) -> None:
        self.said: dict[str, None] = {}
        """What is assumed."""
        self.patches = Patches()
        self.counters = Counters()
        self.models = Models(self.counters)
        self.steps = Steps(steps)
        self.phases = Phases(self.counters, self.models, self.steps)
        self.groups = Groups(self.counters)
        self.values = Values(self.say)
        self.compiling = Compiling(self.say)
        self._one_of_many = one_of_many
        self._left: Any = None

    def say(self, assumed: str) -> None:
        """Add to what is assumed."""
        self.said[assumed] = None

    def __enter__(self) -> Session:
        if os.environ.get("MEMCALC_NO_CUDNN") or not loading.is_planned():
            loading.switch_off()
            self.say(_NO_CUDNN)
        self.counters.install(self.patches)
        self.models.install(self.patches)
        self.steps.install(self.patches)
        self.phases.install(self.patches)
        self.compiling.install(self.patches)
        if os.environ.get("MEMCALC_READS") != "zeros":
            self.values.install(self.patches)
        if self._one_of_many:
            self.be_one_of_many()
        return self

    def __exit__(self, *_: object) -> None:
        self.values.stop()
        self.groups.settle()
        for said in loading.assumptions():
            self.say(said)
        if BY_HAND in self.steps.made:
            self.say(_BY_HAND)
        self.models.sweep()
        self.counters.end()
        self.patches.undo()

    def leave(self, left: BaseException | Mapping[str, Any]) -> None:
        """The program has ended, by an exception or with these variables: note what they hold.

        They stay alive until its memory was read.
        """
        self._left = left
        if isinstance(left, BaseException):
            found = held.variables(held.namespaces(left.__traceback__), self.counters)
        else:
            found = held.variables([left], self.counters)
        self.counters.own(found)

    def be_one_of_many(self) -> None:
        """Groups that the program joins have other processes, which are made up."""
        if threading.current_thread() is threading.main_thread():
            self.groups.install(self.patches)
            self.steps.settle = self.groups.settle

    def recorded(self, name: str) -> Recorded:
        """What the program took; it has ended."""
        for notes in self.counters.notes:
            notes.wrapped = max(self.groups.sizes, default=1) > 1
        return recorded(
            self.counters,
            self.models,
            name,
            steps=self.phases.step + 1,
            # One that is made by hand ends before the next backward.
            alike=range(self.phases.settled, self.phases.step + (BY_HAND not in self.steps.made)),
            said=self.said,
            groups=tuple(sorted(self.groups.sizes)),
        )
