"""Estimates plans: plans in, predictions out."""

from __future__ import annotations

import contextlib
import hashlib
import math
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
from msgspec.structs import replace

from memcalc import registry
from memcalc.catalog import inventory, models
from memcalc.catalog.plan import make, to_simulate
from memcalc.engine.cudnn.library import OFFLINE
from memcalc.errors import EstimateError, MemcalcError, UsageError
from memcalc.estimation.analytic import as_planned
from memcalc.estimation.analytic import estimate as by_closed_forms
from memcalc.estimation.question import canonical, code_in, shell_notes
from memcalc.estimation.serving import exact
from memcalc.estimation.validate import Checked, check
from memcalc.files import cache
from memcalc.records.model import Inventory
from memcalc.records.plan import Method, Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Trace
from memcalc.records.values import checked
from memcalc.workload import layouts

if TYPE_CHECKING:
    from memcalc.estimation.client import Client
    from memcalc.estimation.pool import Pool


def analytic_answers(plans: Sequence[Plan]) -> Iterator[Prediction | MemcalcError]:
    """Answer each plan, or say why it cannot be."""
    with Inventories() as inventories:
        for plan in plans:
            try:
                yield _by_closed_forms(plan, inventories)
            except MemcalcError as error:
                yield error


def _by_closed_forms(plan: Plan, inventories: Inventories) -> Prediction:
    checked = check(plan)
    uncovered = {
        "several GPUs": layouts.spread(plan).world > 1,
        "inference": plan.infers,
        f"a base in {plan.scheme}": plan.scheme is not None,
        "Liger's kernels": plan.liger,
        "compiled models": plan.compile is not None,
    }
    if what := next((what for what, asked in uncovered.items() if asked), None):
        raise UsageError(f"--method analytic does not cover {what}: leave it out.")
    source, choice = checked.source, checked.choice
    tensors = as_planned(inventories.of(checked), plan)
    state = registry.state_of(choice, tensors.parameters, plan)
    answer = by_closed_forms(plan, source, tensors, state, choice, checked.gpu)
    return replace(
        answer,
        assumptions=(*models.notes(plan.model), *checked.notes, *answer.assumptions),
        uncounted=(*checked.uncounted, *answer.uncounted),
    )


class Inventories(contextlib.ExitStack):
    """The tensors of models; those that are not shipped are built once, in a child process."""

    def __init__(self) -> None:
        super().__init__()
        self._client: Client | None = None
        self._known: dict[tuple[str, ...], Inventory] = {}

    def of(self, checked: Checked) -> Inventory:
        """The inventory of a plan's model with its head.

        Raises:
            MemcalcError: the model cannot be built.
        """
        plan, source, head = checked.plan, checked.source, checked.head
        # Adapters are added by peft's own code, in the precision that it gives them.
        adapted = (plan.adapters, plan.precision) if plan.adapters is not None else ()
        key = (source.name, head.name, *adapted)
        if key not in self._known:
            shipped = inventory.load(source, head.name) if not adapted else None
            self._known[key] = shipped or self._built(plan)
        return self._known[key]

    def _built(self, plan: Plan) -> Inventory:
        from memcalc.estimation.client import Client, warm_engines

        if self._client is None:
            self._client = self.enter_context(Client(self.enter_context(warm_engines)))
        answer = self._client.inventory(plan)
        if isinstance(answer, MemcalcError):
            raise answer
        return answer


_LARGEST_SCRIPT = 1 << 22
Answer = Prediction | MemcalcError
T = TypeVar("T")


def estimate(
    model: str, *, method: str = "trace", use_cache: bool = True, **settings: Any
) -> Prediction:
    """Predict the memory of one training run of a named model, as ``memcalc.estimate`` does."""
    plan = make({"model": model, **settings})
    answer = next(iter(answers([plan], method=method, use_cache=use_cache)))
    if isinstance(answer, MemcalcError):
        raise advised(answer, plan, method)
    return replace(answer, assumptions=(*answer.assumptions, *shell_notes(plan)))


def advised(error: MemcalcError, plan: Plan, method: str) -> MemcalcError:
    """The error with what can be known without a trace, where it is a trace that failed."""
    if not isinstance(error, EstimateError) or method == "analytic":
        return error
    if not isinstance(next(analytic_answers([plan])), Prediction):
        return error
    return EstimateError(
        f"{str(error).rstrip('.')}. Without a trace, --method analytic gives the weights, "
        "gradients and optimizer state alone."
    )


def answers(
    plans: Sequence[Plan],
    *,
    method: str = "trace",
    use_cache: bool = True,
    workers: int | None = 1,
    timeout: float = math.inf,
) -> Iterator[Answer]:
    """Answer plans in order; a plan that fails yields its error and the rest go on.

    ``workers`` is the most processes that trace at once; ``None``: what the machine has room for.
    ``timeout``: seconds after which a run is ended, which is an error.
    """
    checked("method", Method, method)
    if method == "analytic":
        yield from analytic_answers(plans)
        return
    with Tracer(use_cache=use_cache, workers=workers, timeout=timeout) as tracer:
        yield from tracer.answers(plans)


class Traced(msgspec.Struct, frozen=True, kw_only=True):
    """A prediction and the events it was read from."""

    prediction: Prediction
    trace: Trace


class Tracer(contextlib.ExitStack):
    """Answers plans through the same child processes; what to ask next may depend on answers.

    Answers are kept in the cache's folder, and traces where they were asked for.
    """

    def __init__(
        self,
        *,
        use_cache: bool = True,
        workers: int | None = 1,
        counted: bool = False,
        figures: bool = False,
        saved: Sequence[Traced] = (),
        timeout: float = math.inf,
    ) -> None:
        """Start nothing yet; ``workers``: the most processes that trace at once.

        ``counted``: answers say how many operations a step takes, which costs one step more.
        ``figures``: of answers the ladder is enough, which saves half of a run.
        ``saved``: runs of commands, which are never run again without being asked for.
        ``timeout``: seconds after which a run is ended.
        """
        super().__init__()
        self._timeout = timeout
        self._use_cache = use_cache
        self._counted, self._figures = counted, figures
        self._saved = {one.prediction.plan: one for one in saved}
        self.workers = workers
        self._pool: Pool | None = None
        self._checked: dict[Plan, Checked | MemcalcError] = {}

    def answers(self, plans: Sequence[Plan]) -> Iterator[Answer]:
        """Answer plans in order; a plan that fails yields its error and the rest go on."""
        return map(self._as_spelled, plans, self._each(plans, self._answered, self._ask))

    def _ask(self, client: Client, plan: Plan) -> Answer:
        checked = self._check(plan)
        if plan.engine is not None and isinstance(checked, Checked):
            found = exact.answer(plan, checked.source)
            if found is not None:
                return found
        return client.ask(plan, counted=self._counted, figures=self._figures)

    def _as_spelled(self, plan: Plan, answer: Answer) -> Answer:
        """The answer with what only this spelling of the question makes worth saying."""
        checked = self._check(plan)
        if not isinstance(answer, Prediction) or not isinstance(checked, Checked):
            return answer
        assumed = (*checked.notes, *answer.assumptions)
        missed = (*checked.uncounted, *answer.uncounted)
        return replace(answer, assumptions=assumed, uncounted=missed)

    def trace(self, plan: Plan) -> Traced:
        """Trace one plan and keep its events, or find them in the cache.

        Raises:
            MemcalcError: it cannot be traced.
        """
        return self.trace_beside(plan, ())[0]

    def trace_beside(self, plan: Plan, others: Sequence[Plan]) -> tuple[Traced, Iterator[Answer]]:
        """Trace one plan, as ``trace`` does, while others are answered side by side with it.

        Raises:
            MemcalcError: it cannot be traced.
        """

        def kept(one: Plan) -> Traced | Answer | None:
            return self._traced(one) if one == plan else self._answered(one)

        def ask(client: Client, one: Plan) -> Traced | Answer:
            return _ask_for_events(client, one) if one == plan else self._ask(client, one)

        found = self._each([plan, *others], kept, ask)
        traced = next(found)
        if isinstance(traced, MemcalcError):
            raise traced
        assert isinstance(traced, Traced)
        return traced, map(self._as_spelled, others, cast(Iterator[Answer], found))

    def traces(self, plans: Sequence[Plan]) -> Iterator[Traced | MemcalcError]:
        """The same of several plans, in order, side by side; what fails yields its error."""
        return self._each(plans, self._traced, _ask_for_events)

    def _each(
        self,
        plans: Sequence[Plan],
        kept: Callable[[Plan], T | MemcalcError | None],
        ask: Callable[[Client, Plan], T | MemcalcError],
    ) -> Iterator[T | MemcalcError]:
        """What is kept of each plan, or else the answer of a child, which is kept from then on."""
        known = {plan: kept(plan) for plan in plans}
        missing = [plan for plan, found in known.items() if found is None]
        fresh = zip(missing, self.pool().each(missing, ask) if missing else (), strict=True)
        for plan in plans:
            while (found := known[plan]) is None:
                asked, answer = next(fresh)
                known[asked] = answer
                whole = isinstance(answer, Traced) or not self._figures
                name = self._name(asked, "trace" if whole else "figures")
                if isinstance(answer, Prediction | Traced) and name is not None:
                    _store(name, answer)
            yield found

    def _answered(self, plan: Plan) -> Answer | None:
        """The answer that the cache holds of a plan, or what is wrong with it."""
        checked = self._check(plan)
        if isinstance(checked, MemcalcError):
            return checked
        found = _from_cache(self._name(plan), plan)
        if found is None and self._figures:
            found = _from_cache(self._name(plan, "figures"), plan)
        return None if self._counted and found is not None and found.flops is None else found

    def _traced(self, plan: Plan) -> Traced | MemcalcError | None:
        """The same with the events; of a command, those of when it last ran."""
        if plan.command:
            run = to_simulate(plan, "-o run.json ")
            gone = EstimateError(f"the command's trace is no longer kept: type {run}")
            return self._saved.get(plan) or _kept(_simulated(plan), plan) or gone
        checked = self._check(plan)
        return checked if isinstance(checked, MemcalcError) else _kept(self._name(plan), plan)

    def _check(self, plan: Plan) -> Checked | MemcalcError:
        """What a plan names, or why it is refused; found once."""
        if plan not in self._checked:
            try:
                self._checked[plan] = check(plan)
            except MemcalcError as error:
                self._checked[plan] = error
        return self._checked[plan]

    def _name(self, plan: Plan, kind: str = "trace") -> str | None:
        """Of a plan's answer in the cache; ``None``: it is not kept there."""
        checked = self._check(plan)
        if isinstance(checked, MemcalcError) or not self._use_cache:
            return None
        config = checked.source.config
        if config is None or code_in(plan) is not None:
            return None
        return cache.key(canonical(plan), config, kind + exact.method_of(plan))

    def pool(self) -> Pool:
        """Children of this tracer, also for what it does not ask itself."""
        if self._pool is None:
            from memcalc.estimation.pool import Pool

            self._pool = self.enter_context(Pool(self.workers, self._timeout))
        return self._pool


def _ask_for_events(client: Client, plan: Plan) -> Traced | MemcalcError:
    found = client.trace(plan)
    if isinstance(found, MemcalcError):
        return found
    return Traced(prediction=found[0], trace=found[1])


def _simulated(plan: Plan) -> str:
    """Of what a command did, in the cache."""
    return cache.key(plan, {}, "simulated")


def keep(traced: Traced) -> None:
    """Keep what a command did for those who ask again, and that it ran here."""
    plan = traced.prediction.plan
    _store(_simulated(plan), traced)
    if plan.command:
        cache.store(_as_it_is_here(plan), traced.prediction)


def may_run_again(plan: Plan) -> bool:
    """The command has run in this folder, and the files that it names are as they were."""
    return cache.load(_as_it_is_here(plan), Prediction) is not None


def _as_it_is_here(plan: Plan) -> str:
    """In the cache, of a command with its folder and the files that it names."""
    words = shlex.split(plan.command or "")
    files = {word: Path(word).read_bytes() for word in words if _is_script(word)}
    code = {word: hashlib.sha256(content).hexdigest() for word, content in files.items()}
    return cache.key(plan, {"folder": str(Path().resolve()), "code": code}, "ran")


def _is_script(word: str) -> bool:
    with contextlib.suppress(OSError, ValueError):
        return Path(word).is_file() and Path(word).stat().st_size < _LARGEST_SCRIPT
    return False


def _store(name: str, answer: Prediction | Traced) -> None:
    prediction = answer.prediction if isinstance(answer, Traced) else answer
    if any(OFFLINE in sentence for sentence in prediction.uncounted):
        return  # An answer with a network is another.
    if isinstance(answer, Traced):
        cache.store(name, answer.trace)
    cache.store(name, prediction)


def _kept(name: str | None, plan: Plan) -> Traced | None:
    """An answer with its events, where the cache has both."""
    known = _from_cache(name, plan)
    events = cache.load(name, Trace) if name is not None and known is not None else None
    return None if known is None or events is None else Traced(prediction=known, trace=events)


def _from_cache(name: str | None, plan: Plan) -> Prediction | None:
    """What is kept under a name, as the answer to this spelling of the question."""
    found = cache.load(name, Prediction) if name is not None else None
    return replace(found, plan=plan) if found is not None else None
