"""Sets up all that follows a program in this process, and makes a trace for each GPU of its notes.

Blocks that outlive backward are held by the program, and are named by its variables.
"""

from __future__ import annotations

import bisect
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from memcalc.engine import torch_internals as internals
from memcalc.engine.compiling import Compiling
from memcalc.engine.counters import Counters
from memcalc.engine.cudnn import loading
from memcalc.engine.follow import variables
from memcalc.engine.follow.group import Groups
from memcalc.engine.follow.models import Models
from memcalc.engine.follow.names import WATCHED, Names
from memcalc.engine.follow.phases import Phases
from memcalc.engine.follow.steps import BY_HAND, Steps
from memcalc.engine.history import Timeline
from memcalc.engine.notes import Interval, Label
from memcalc.engine.patches import Patches
from memcalc.engine.values.follower import Values
from memcalc.records.model import OptimizerState
from memcalc.records.prediction import LONGER, Refusal
from memcalc.records.trace import Component, Phase, Trace
from memcalc.units import format_bytes

ONE_OF_MANY = "this is rank {} of {}; messages of others are assumed to have arrived"
_BY_HAND = (
    "without an optimizer, the script's change of its parameters between two backward passes is "
    "taken for a step"
)
_NO_CUDNN = "cuDNN is off: convolutions run PyTorch's own kernels"
_ALIKE = 0.01
"""Steps whose peaks differ by less are alike: a loss that is kept, a counter that grows."""
_OTHERS = "processes that the script started: one had up to {} of GPU memory, context included"
_LONGER = (
    f"{LONGER}: peaks of these {{}} steps differ, so batches may differ in size, "
    "and each new size can fragment the cache (--steps {} runs more of them)"
)


class Session:
    """A followed run of the program in this process, over the stub driver.

    When an optimizer is about to go beyond ``steps``, the program ends; 0: never. Where it is
    ``one_of_many``, other processes train with it. Unless it ``follows_values``, all that the
    program reads from the GPU is zero.
    """

    def __init__(
        self,
        steps: int = 0,
        *,
        one_of_many: bool = False,
        follows_values: bool = True,
        uses_cudnn: bool = True,
    ) -> None:
        self.patches = Patches()
        self.say = self.patches.say
        self.counters = Counters()
        self.models = Models(self.counters)
        self.steps = Steps(steps)
        self.names = Names(self.counters, self.models, self.steps)
        self.names.stepping = self._begin_step
        self.phases = Phases(self.counters, self.steps, self.names)
        self.groups = Groups(self.counters, self._join)
        self.values = Values(self.say)
        self.compiling = Compiling(self.say)
        self._one_of_many, self._follows_values = one_of_many, follows_values
        self._uses_cudnn = uses_cudnn and loading.has_library()
        self._left: Any = None

    def __enter__(self) -> Session:
        if not self._uses_cudnn:
            loading.switch_off()
            self.say(_NO_CUDNN)
        internals.see_simulated_gpus(self.patches)
        self.counters.install(self.patches, with_lines=True)
        self.phases.begin(Phase.LOAD)
        for part in (self.models, self.steps, self.names, self.phases, self.compiling):
            part.install(self.patches)
        if self._follows_values:
            self.values.install(self.patches)
        self.groups.watch(self.patches)
        if self._one_of_many:
            self.be_one_of_many()
        return self

    def __exit__(self, *_: object) -> None:
        self.values.stop()
        self.groups.settle()
        self.phases.end()
        for said in loading.assumptions():
            self.say(said)
        if BY_HAND in self.steps.made:
            self.say(_BY_HAND)
        self.models.sweep()
        self.counters.end()
        self.patches.undo()

    def leave(self, left: BaseException | Mapping[str, Any]) -> None:
        """Record the variables that hold memory when a program has ended.

        ``left``: its exception, or its variables; they stay alive until its memory was read.
        """
        self._left = left
        if isinstance(left, BaseException):
            scopes = variables.scopes_of_traceback(left.__traceback__)
        else:
            scopes = iter([variables.Scope(left, str(left.get("__file__", "")))])
            self.names.end()
        self._record_holders(scopes)

    def _begin_step(self, step: int) -> None:
        """Label weights and variables again in the first steps of the program."""
        if step == WATCHED:
            self.counters.without_lines()
            # A function that trains to the end of the program takes its variables with it.
            self._record_holders(variables.running_scopes())
        if step <= WATCHED:
            # Programs may have given weights other memory.
            self.models.sweep()

    def _record_holders(self, scopes: Iterable[variables.Scope]) -> None:
        """Record which variables, of these and of the user's modules, hold memory."""
        every = itertools.chain(scopes, variables.module_scopes())
        self.counters.own(variables.holders(every, self.counters))

    def follow_checkpoints(self) -> None:
        """Label what is loaded from a file to the GPU as held, unless labelled later."""
        around = self.counters.makes(Component.HELD)
        self.patches.wrap(torch, "load", around)
        for name in ("load", "load_file"):
            self.patches.wrap_later("safetensors.torch", name, around)

    def be_one_of_many(self) -> None:
        """Patch torch.distributed to run this process as one of several ranks, alone."""
        if threading.current_thread() is threading.main_thread():
            self.groups.install(self.patches)
            self.steps.settle = self.groups.settle

    def _join(self, rank: int, world: int) -> None:
        """Run this process as the rank that the program, or the shell's variables, say it is."""
        self.say(ONE_OF_MANY.format(rank, world))
        self.be_one_of_many()

    def state(self) -> OptimizerState:
        """Return the optimizer state for the models alive at the peak."""
        return self.models.state(self.counters.peak_interval(*self.counters.notes))

    def make_traces(self, name: str) -> tuple[dict[int, Trace], Refusal | None]:
        """Return a trace for each GPU, and the request that failed last, once the program ended."""
        # One that is made by hand ends before the next backward.
        alike = range(self.phases.settled, self.phases.step + (BY_HAND not in self.steps.made))
        arrived, others = internals.arrivals(), internals.peak_of_other_processes()
        started = (_OTHERS.format(format_bytes(others)),) if others else ()
        traces, refusal, wrapped = {}, None, max(self.groups.sizes, default=1) > 1
        for notes, entries in self.counters.histories():
            if not entries:
                continue
            notes.labels += [(moment - notes.zero, Label.ARRIVED, at) for moment, at in arrived]
            timeline = Timeline(notes, entries, wrapped=wrapped)
            _label_held_blocks(timeline, notes.intervals, wrapped=wrapped)
            traces[notes.device] = timeline.trace(
                inventory=self.models.inventory(name, self.counters.peak_interval(notes)),
                steps=self.phases.step + 1,
                uncounted=(*_note_varying_steps(notes.intervals, alike), *started),
                sent=timeline.sent(max(0, self.phases.step - 1)),
                whole=True,
                assumptions=self.patches.assumptions,
                groups=tuple(sorted(self.groups.sizes)),
            )
            refusal = timeline.refusal() or refusal
        return traces, refusal


def _label_held_blocks(timeline: Timeline, intervals: list[Interval], *, wrapped: bool) -> None:
    """Label blocks as held that outlive two backward passes.

    ``wrapped``: only those that a variable holds: a wrapper over several GPUs may hold the rest.
    """
    ends = [one.end for one in intervals[:-1] if one.phase is Phase.BACKWARD]
    begins = [one.begin for one in intervals]

    def outlives(block: Any) -> bool:
        if not ends:
            return block.component is None and bool(block.op)
        return bisect.bisect_left(ends, block.dies) - bisect.bisect_left(ends, block.born) > 1

    guessed = [
        block
        for block in timeline.blocks
        if (block.op or not wrapped)
        and (
            block.component in (None, Component.ACTIVATIONS)
            or (block.component is Component.INPUTS and not block.given)
        )
    ]
    free = [
        block
        for block in guessed
        # Backward frees what autograd saved for it.
        if intervals[max(bisect.bisect_right(begins, block.dies) - 1, 0)].phase
        is not Phase.BACKWARD
        or block.dies > intervals[-1].end
    ]
    alike = {(block.line, block.size) for block in free if block.line and outlives(block)}
    holders = {(block.line, block.size): block.op for block in free if block.op}
    for block in free:
        what = block.line, block.size
        block.op = holders.get(what, block.op)
        if outlives(block) or what in alike:
            block.component = Component.HELD


def _note_varying_steps(intervals: Sequence[Interval], alike: range) -> tuple[str, ...]:
    """Return a note on longer runs if peaks of comparable steps differ, else nothing."""
    peaks: dict[int, int] = {}
    # What a step does after its last backward, such as loading a checkpoint, is none of its batch.
    whole = {one.step: at for at, one in enumerate(intervals) if one.phase is Phase.BACKWARD}
    for at, one in enumerate(intervals):
        of_batch = one.phase in (Phase.FORWARD, Phase.BACKWARD) and at <= whole.get(one.step, -1)
        if one.step in alike and of_batch:
            peaks[one.step] = max(peaks.get(one.step, 0), one.peaks.requested)
    found = [*peaks.values()]
    # What the first leaves behind is alive in all others.
    found = found[1:] if len(found) > 2 else found
    if len(found) < 2 or min(found) >= (1 - _ALIKE) * max(found):
        return ()
    return (_LONGER.format(len(whole), 10 * len(whole)),)
