"""Says of any batch and sequence whether it fits: by a symbolic trace, else by a trace."""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from msgspec.structs import replace

from memcalc.allocator.replay import replay
from memcalc.allocator.settings import AllocatorSettings, round_size
from memcalc.errors import MemcalcError
from memcalc.estimation.client import Client
from memcalc.estimation.decoding import grown
from memcalc.estimation.decoding.grown import is_long
from memcalc.estimation.fits import Device, hopeless, judge
from memcalc.estimation.from_symbolic import point_of
from memcalc.estimation.operations import replayable
from memcalc.estimation.pool import asking, room
from memcalc.estimation.question import Asked, asked
from memcalc.estimation.replays import UNLIMITED, judged
from memcalc.estimation.state import state_for
from memcalc.files import cache
from memcalc.files.artifact import encode
from memcalc.fitting.records import Probe
from memcalc.fitting.symbolic import SymbolicTraces, at
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit
from memcalc.records.steady import continued, repeats
from memcalc.records.trace import Trace
from memcalc.records.walk import changes
from memcalc.symbolic.evaluate import Evaluator, EventStream
from memcalc.symbolic.records import Point
from memcalc.trace.decoding import TRACED
from memcalc.trace.passes import NotSteadyError

T = TypeVar("T")


class Oracle:
    """Answers for one program on any device; what it learns is kept for the next question."""

    def __init__(
        self, clients: Sequence[Client], config: dict[str, Any] | None, *, use_cache: bool
    ) -> None:
        """Answer through child processes.

        Args:
            clients: the first is asked; the others help where many questions come together.
            config: the model's, where it has one.
            use_cache: keep what is learnt on disk.
        """
        self._clients = clients
        self._config = config if use_cache else None
        self._symbolic = SymbolicTraces(self._config)
        self._verified: dict[tuple[Plan, Device], Probe] = {}
        self._last: tuple[Plan, Trace] | None = None
        """The decode that was written down last."""
        self.traces = 0
        self.notes = self._symbolic.notes
        self.assumptions: tuple[str, ...] = ()
        """Of the last trace or symbolic trace that answered."""
        self.uncounted: tuple[str, ...] = ()
        """The same: what of its kernels' memory is not known."""

    def probe(self, plan: Plan, device: Device) -> Probe:
        """Does this plan fit this device?

        Raises:
            MemcalcError: it could not be estimated.
        """
        question = asked(plan)
        evaluator = self._symbolic.find(question)
        if evaluator is None and self._symbolic.may_learn(plan):
            self.learn([plan])
            evaluator = self._symbolic.find(question)
        if evaluator is None:
            return self.verify(plan, device)
        point = point_of(evaluator.symbolic, plan)
        if is_long(plan.generate):
            return self._of_decode(question, point, device) or self.verify(plan, device)
        stream = evaluator.stream(point, question.target)
        self.assumptions = (*question.notes, *evaluator.whole.assumptions)
        self.uncounted = evaluator.uncounted(point, question.target)
        fit = _judged(_Events(stream, evaluator.whole), question, evaluator.whole, device)
        return Probe(batch=plan.batch, seq=point.seq, fit=fit)

    def each(self, plan: Plan, jobs: Sequence[Callable[[Oracle], T]]) -> list[T]:
        """Answer several questions about one program, at once where each size has to be traced.

        Args:
            plan: of the program, which was probed before.
            jobs: ask an oracle.

        Raises:
            MemcalcError: one could not be answered.
        """
        count = min(len(self._clients), len(jobs), room())
        if count < 2 or not self._symbolic.refuses(plan):
            return [job(self) for job in jobs]
        others = [copy.copy(self) for _ in range(count - 1)]
        for other, client in zip(others, self._clients[1:], strict=False):
            other._clients, other.traces = (client,), 0
        with asking(self._clients) as threads:
            oracles = itertools.cycle([self, *others])
            found = [
                threads.submit(job, oracle) for job, oracle in zip(jobs, oracles, strict=False)
            ]
            answers = [answer.result() for answer in found]
        self.traces += sum(other.traces for other in others)
        return answers

    def sketch(self, plan: Plan, device: Device) -> Probe:
        """The same, but a long decode that cannot fit for sure is answered with what is known.

        Its ``fit.metric`` is then ``allocated``, for bytes that are alive at once however they are
        laid out.

        Raises:
            MemcalcError: it could not be estimated.
        """
        found = self._too_large(plan, device) if is_long(plan.generate) else None
        return found or self.probe(plan, device)

    def _of_decode(self, question: Asked, point: Point, device: Device) -> Probe | None:
        """A probe of a long decode; ``None``: it has to be traced."""
        trace = self._decode(question, point)
        if trace is None:
            return None
        self.assumptions, self.uncounted = trace.assumptions, trace.uncounted
        fit = judged(question, trace, device.holding(state_for(question, trace), trace.inventory))
        return Probe(batch=point.batch, seq=point.seq, fit=fit)

    def _decode(self, question: Asked, point: Point) -> Trace | None:
        """The trace of a long decode by symbolic traces, which are learnt as they are needed."""
        key = replace(question.plan, seq=point.seq)
        if self._last is None or self._last[0] != key:
            try:
                whole = grown.trace_of(question, point, functools.partial(self._at, question))
            except (NotSteadyError, _NotLearntError):
                return None
            self._last = key, whole
        return self._last[1]

    def _at(self, question: Asked, point: Point) -> Evaluator:
        """A symbolic trace that holds after a prompt of another length.

        Raises:
            MemcalcError: the plan cannot be estimated.
        """
        there = at(question, point)
        found = self._symbolic.find(there)
        if found is None and self._symbolic.may_learn(there.plan):
            self.traces += 1
            # No more is generated there than its own passes, so that the prompt has all positions.
            learnt = self._clients[0].grow(replace(there.plan, generate=TRACED))
            self._symbolic.take(there.plan, learnt)
            found = self._symbolic.find(there)
        if found is None:
            raise _NotLearntError
        return found

    def verify(self, plan: Plan, device: Device) -> Probe:
        """The same by a plain trace; a symbolic trace that says otherwise is given up.

        Raises:
            MemcalcError: it could not be estimated.
            SymbolicTraceRefutedError: a symbolic trace said otherwise.
        """
        known = self._verified.get((plan, device))
        if known is not None:
            return known
        question = asked(plan)
        trace = self._trace(plan)
        fit = judged(question, trace, device.holding(state_for(question, trace), trace.inventory))
        self.assumptions, self.uncounted = trace.assumptions, trace.uncounted
        self._symbolic.prove(plan, trace)
        found = Probe(batch=plan.batch, seq=trace.seq, fit=fit, traced=True)
        self._verified[plan, device] = found
        return found

    def learn(self, plans: Sequence[Plan]) -> None:
        """Learn symbolic traces at several points at once, one child process for each.

        Raises:
            MemcalcError: one of them could not be estimated.
        """
        lacking = [
            plan
            for plan in plans
            if self._symbolic.find(asked(plan)) is None and self._symbolic.may_learn(plan)
        ]
        pairs = list(zip(self._clients, lacking, strict=False))
        with asking(self._clients) as children:
            learnt = list(children.map(lambda pair: pair[0].grow(pair[1]), pairs))
        for (_, plan), symbolic in zip(pairs, learnt, strict=True):
            self.traces += 1
            self._symbolic.take(plan, symbolic)

    def table(self, plans: Sequence[Plan], device: Device) -> list[Probe]:
        """Probe plans that differ in batch and sequence only.

        What needs more than the device has, however it is laid out, is answered with that much:
        its ``fit.metric`` is ``allocated``. Child processes make traces in proof meanwhile.

        Raises:
            MemcalcError: one could not be estimated.
            SymbolicTraceRefutedError: a symbolic trace said otherwise than a trace.
        """
        last: dict[int, Plan] = {}
        for plan in plans:
            evaluator = self._symbolic.find(asked(plan))
            if self._symbolic.unproven(evaluator):
                last[id(evaluator)] = plan
        proofs = list(zip(self._clients, last.values(), strict=False))
        with asking(self._clients) as children:
            traces = [children.submit(self._trace, plan, client) for client, plan in proofs]
            found = [self._too_large(plan, device) or self.probe(plan, device) for plan in plans]
            for (_, plan), trace in zip(proofs, traces, strict=True):
                self._symbolic.prove(plan, trace.result())
        return found

    def longest(self, plan: Plan) -> int | None:
        """The longest sequence the model takes; ``None``: no limit is known."""
        return self._symbolic.longest(plan)

    def _too_large(self, plan: Plan, device: Device) -> Probe | None:
        """The answer for what cannot fit for sure, in a fraction of the time of a replay."""
        question = asked(plan)
        evaluator = self._symbolic.find(question)
        if evaluator is None:
            return None
        point = point_of(evaluator.symbolic, plan)
        if is_long(plan.generate):
            whole = self._decode(question, point)
            if whole is None:
                return None
            sizes = [storage.bytes for storage in whole.storages]
            least = _least(whole.events, sizes, question.settings)
        else:
            stream = evaluator.stream(point, question.target)
            least = _least(stream.events, stream.sizes, question.settings)
        fit = hopeless(least, device)
        return Probe(batch=plan.batch, seq=point.seq, fit=fit) if fit is not None else None

    def _trace(self, plan: Plan, client: Client | None = None) -> Trace:
        self.traces += 1
        client = client or self._clients[0]
        if is_long(plan.generate):
            # What it would come to on its own GPU is a replay of all its passes, and is not asked.
            found = client.bare(plan)
            if isinstance(found, MemcalcError):
                raise found
            return found
        answer = client.trace(plan)
        if isinstance(answer, MemcalcError):
            raise answer
        prediction, trace = answer
        if self._config is not None:
            cache.store(cache.key(plan, self._config, "trace"), encode(prediction))
        return trace


def _least(events: Sequence[int], sizes: Sequence[int], settings: AllocatorSettings) -> int:
    """The bytes of blocks alive at once, at the peak: no allocator needs less."""
    rounded = [round_size(size, settings.divisions) for size in sizes]
    return max(accumulate(changes(events, rounded)))


class _NotLearntError(Exception):
    """A decode has passes of which no symbolic trace can be made."""


class _Events:
    """The events of a stream, in the form the allocator replays."""

    def __init__(self, stream: EventStream, whole: Trace) -> None:
        self._stream = stream
        self._whole = whole

    def __call__(self) -> Iterator[tuple[Any, ...]]:
        stream = self._stream
        sizes, origins, storages = stream.sizes, stream.origins, self._whole.storages

        def kind(number: int) -> Any:
            origin = storages[origins[number]]
            return sizes[number], origin.op, origin.module, origin.phase

        more = repeats(self._whole)
        events = continued(stream.events, stream.marks, kind, storages=len(sizes), more=more)
        return replayable(events, sizes)


def _judged(events: _Events, question: Asked, trace: Trace, device: Device) -> Fit:
    settings = question.settings
    state = state_for(question, trace)
    unlimited = replay(events(), settings, UNLIMITED).peaks
    return judge(events, settings, device.holding(state, trace.inventory), unlimited)
