"""Answers plans from the cache, or by parallel runs within the machine's memory."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from msgspec.structs import replace

from memcalc.catalog import gpus
from memcalc.catalog.plan import to_simulate
from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation import kept
from memcalc.estimation.kept import Traced
from memcalc.estimation.question import ResolvedPlan, canonical, check, find_user_code
from memcalc.files import cache
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction

if TYPE_CHECKING:
    from concurrent.futures import Future

    from memcalc.estimation.engine import Engine

Answer = Prediction | MemcalcError
T = TypeVar("T")
U = TypeVar("U")
RUN_BYTES = 1 << 30
"""Main memory to allow for each run, in bytes: PyTorch's CPU build took 0.4 GB, CUDA's more."""
_CGROUP = Path("/sys/fs/cgroup")


class Answers:
    """A source of answers to plans; the next plan may depend on them. Threads may share it.

    Answers are kept in the cache's folder, and also traces if they were requested.
    """

    def __init__(
        self,
        *,
        use_cache: bool = True,
        workers: int | None = 1,
        counted: bool = False,
        figures: bool = False,
        memory: int | None = None,
        saved: Sequence[Traced] = (),
        timeout: float = math.inf,
    ) -> None:
        """Keep the settings; no run starts yet.

        Args:
            use_cache: read answers from the cache and write them there.
            workers: the most runs at once. With None the machine's memory decides.
            counted: answers have the operations of a step, which takes one step more.
            figures: answers need only the peaks of the ladder, which halves the time of a run.
            memory: bytes of the GPU, in place of its own.
            saved: traced runs of commands; a command is never run again here.
            timeout: seconds after which a run is ended.
        """
        self._timeout = timeout
        self._use_cache = use_cache
        self._counted, self._figures = counted, figures
        self.memory = memory
        self.runs = 0
        """Runs that were made; answers from the cache need none."""
        self._saved = {one.prediction.plan: one for one in saved}
        self._workers = workers
        self._checked: dict[Plan, ResolvedPlan | MemcalcError] = {}
        self._known: dict[Plan, Traced | Answer] = {}
        """All answers so far."""
        self._under_way: dict[tuple[Plan, bool], Future[Mapping[Plan, Traced | Answer]]] = {}
        """Runs that will answer a plan, by the plan and whether its events are requested."""
        self._lock = threading.Lock()

    @functools.cached_property
    def workers(self) -> int:
        """The most simulated runs at once."""
        return room() if self._workers is None else max(self._workers, 1)

    @functools.cached_property
    def _turn(self) -> threading.Semaphore:
        """The semaphore that limits simulated runs at once."""
        return threading.Semaphore(self.workers)

    def predict(self, plans: Sequence[Plan]) -> Iterator[Answer]:
        """Predict plans in order, from the cache or by runs; a plan that fails yields its error."""
        return map(self._add_notes, plans, cast(Iterator[Answer], self._answer_each(plans, ())))

    def trace(self, plan: Plan, before: Sequence[Plan] = ()) -> Traced:
        """Return the prediction and allocation events of a plan, from the cache or by a run.

        ``before``: plans that will be asked about next; they are started, and not waited for.

        Raises:
            MemcalcError: it cannot be traced.
        """
        traced = next(self._answer_each([plan, *before], [plan]))
        if isinstance(traced, MemcalcError):
            raise traced
        return cast(Traced, traced)

    def predict_one(self, plan: Plan) -> Prediction:
        """Predict one plan; raise its error if it fails.

        Raises:
            MemcalcError: it cannot be answered.
        """
        (found,) = self.predict([plan])
        if isinstance(found, MemcalcError):
            raise found
        return found

    def map_parallel(self, function: Callable[[T], U], items: Sequence[T]) -> Iterator[U]:
        """Call a function for each item in up to ``workers`` threads; yield results in order.

        An error of a call is raised in its place. No more calls start once the caller stops taking
        results.
        """
        if min(self.workers, len(items)) <= 1:
            yield from map(function, items)
            return
        with self._start_threads(function, items) as results:
            for result in results:
                yield result.result()

    def iterate_results(self, jobs: Sequence[Callable[[], T]]) -> Iterator[T]:
        """Call functions in up to ``workers`` threads; yield each result once it is known."""
        if min(self.workers, len(jobs)) <= 1:
            yield from (job() for job in jobs)
            return
        from concurrent.futures import as_completed

        with self._start_threads(lambda job: job(), jobs) as results:
            for result in as_completed(results):
                yield result.result()

    @contextlib.contextmanager
    def _start_threads(
        self, function: Callable[[T], U], items: Sequence[T]
    ) -> Iterator[Sequence[Future[U]]]:
        """Start threads that call a function for each item; yield the futures of the results."""
        from concurrent.futures import Future  # An answer from the cache does not need it.

        results: list[Future[U]] = [Future() for _ in items]
        waiting = deque(zip(items, results, strict=True))

        def work() -> None:
            while True:
                try:
                    item, result = waiting.popleft()
                except IndexError:
                    return
                if not result.set_running_or_notify_cancel():
                    continue
                try:
                    result.set_result(function(item))
                except BaseException as error:  # It is raised where the result is read.
                    result.set_exception(error)

        for _ in range(min(self.workers, len(items))):
            # Ctrl-C does not wait for answers.
            threading.Thread(target=work, daemon=True).start()
        try:
            yield results
        except (KeyboardInterrupt, SystemExit):
            waiting.clear()  # before the runs that end here make room for others
            _import_engine().close()
            raise
        finally:
            for result in results:
                result.cancel()

    def predict_lengths(self, plan: Plan, lengths: Sequence[int]) -> Prediction:
        """Predict one plan over batches of these lengths (in tokens), one after the other.

        Raises:
            MemcalcError: it cannot be answered.
        """
        with self._turn:
            how = {"lengths": lengths, "figures": True, "timeout": self._timeout}
            return _import_engine().predict(plan, **how)

    def _answer_each(
        self, plans: Sequence[Plan], traced: Collection[Plan]
    ) -> Iterator[Traced | Answer]:
        """Answer each plan from the cache, or run it and cache the answer.

        ``traced``: the plans whose events are requested too.
        """
        with contextlib.ExitStack() as stack:
            with self._lock:
                known = {one: self._recall(one, one in traced) for one in plans}
                alike: dict[object, list[Plan]] = {}
                for plan, found in known.items():
                    under_way = self._under_way.get((plan, plan in traced))
                    if found is None and (under_way is None or under_way.cancelled()):
                        key = plan if plan in traced else _find_run(plan)
                        alike.setdefault(key, []).append(plan)
                groups = list(alike.values())
                run = functools.partial(self._run_and_store, traced=traced)
                runs = stack.enter_context(self._start_threads(run, groups)) if groups else []
                for group, started in zip(groups, runs, strict=True):
                    self._under_way |= {(plan, plan in traced): started for plan in group}
            for plan in plans:
                yield known[plan] or self._wait_for(plan, plan in traced)

    def _wait_for(self, plan: Plan, traced: bool) -> Traced | Answer:
        """Return the answer of a plan under way; start it again if its asker stopped waiting."""
        from concurrent.futures import CancelledError

        try:
            return self._under_way[plan, traced].result()[plan]
        except CancelledError:
            return next(self._answer_each([plan], [plan] if traced else ()))

    def _run_and_store(
        self, plans: Sequence[Plan], traced: Collection[Plan]
    ) -> Mapping[Plan, Traced | Answer]:
        """Predict plans that one run answers, and keep their answers."""
        found = dict(zip(plans, self._run(plans, plans[0] in traced), strict=True))
        for plan, answer in found.items():
            self._store(plan, answer)
        self._known |= found
        return found

    def _recall(self, plan: Plan, traced: bool) -> Traced | Answer | None:
        """Return the answer of a plan that is known already, with its events if requested."""
        found = self._known.get(plan)
        if found is None or (traced and isinstance(found, Prediction)):
            found = self._load_trace(plan) if traced else self._load_prediction(plan)
            if found is not None:
                self._known[plan] = found
        return found.prediction if isinstance(found, Traced) and not traced else found

    def _run(self, plans: Sequence[Plan], traced: bool) -> Sequence[Traced | Answer]:
        """Predict plans that one run answers: run the first, replay for the others."""
        plan = plans[0]
        if (base := self._find_traced(plan)) is not None and not traced:
            return [replay(base, one, self.memory) for one in plans]
        checked = self._check_once(plan)
        how: dict[str, Any] = {"memory": self.memory, "timeout": self._timeout}
        self.runs += 1
        try:
            with self._turn:
                if traced:
                    return [_import_engine().trace(plan, **how)]
                if plan.engine is not None and isinstance(checked, ResolvedPlan):
                    from memcalc.estimation.serving import exact

                    found = exact.answer(checked)
                    if found is not None:
                        return [found]
                how |= {"counted": self._counted, "figures": self._figures}
                return _import_engine().predict_together(plans, **how)
        except MemcalcError as error:
            return [error] * len(plans)
        except OSError as error:
            return [EstimateError(f"The simulated run did not start: {error}.")] * len(plans)

    def _find_traced(self, plan: Plan) -> Traced | None:
        """Return a traced run whose replay can answer a plan, or None."""
        key, known = _find_run(plan), list(self._known.values())
        alike = (o for o in known if isinstance(o, Traced) and _find_run(o.prediction.plan) == key)
        return next(alike, None)

    def _add_notes(self, plan: Plan, answer: Answer) -> Answer:
        """Add the notes that depend on how the plan was written."""
        checked = self._check_once(plan)
        if not isinstance(answer, Prediction) or not isinstance(checked, ResolvedPlan):
            return answer
        assumed = (*checked.notes_at(plan.seq), *answer.assumptions)
        missed = (*checked.uncounted, *answer.uncounted)
        return replace(answer, assumptions=assumed, uncounted=missed)

    def _load_prediction(self, plan: Plan) -> Answer | None:
        """Return the cached prediction of a plan, the error that refuses it, or None."""
        checked = self._check_once(plan)
        if isinstance(checked, MemcalcError):
            return checked
        found = kept.load(self._cache_key(plan), plan)
        if found is None and self._figures:
            found = kept.load(self._cache_key(plan, "figures"), plan)
        return None if self._counted and found is not None and found.flops is None else found

    def _load_trace(self, plan: Plan) -> Traced | MemcalcError | None:
        """Return the cached prediction and events of a plan, its error, or None.

        The events of a command are from its last run.
        """
        if plan.command:
            run = to_simulate(plan, "-o run.json ")
            gone = EstimateError(f"the command's trace is no longer kept: type {run}")
            known = kept.load_trace(kept.simulated_key(plan), plan)
            return self._saved.get(plan) or known or gone
        checked = self._check_once(plan)
        if isinstance(checked, MemcalcError):
            return checked
        return kept.load_trace(self._cache_key(plan), plan)

    def _store(self, plan: Plan, answer: object) -> None:
        whole = isinstance(answer, Traced) or not self._figures
        key = self._cache_key(plan, "trace" if whole else "figures")
        if isinstance(answer, Prediction | Traced) and key is not None:
            kept.store(key, answer)

    def _check_once(self, plan: Plan) -> ResolvedPlan | MemcalcError:
        """Validate a plan, or return the error that refuses it; the result is remembered."""
        if plan not in self._checked:
            try:
                self._checked[plan] = check(plan)
            except MemcalcError as error:
                self._checked[plan] = error
        return self._checked[plan]

    def _cache_key(self, plan: Plan, kind: str = "trace") -> str | None:
        """Return the cache key of a plan's answer, or None if it is not cached."""
        checked = self._check_once(plan)
        if isinstance(checked, MemcalcError) or not self._use_cache:
            return None
        config = checked.source.config
        if config is None or find_user_code(plan) is not None:
            return None
        if plan.engine is not None:
            from memcalc.estimation.serving import exact

            kind += exact.find_vllm(plan)
        if self.memory is not None:
            kind += f" in {self.memory}"
        return cache.key(canonical(plan), config, kind)


def replay(base: Traced, plan: Plan, memory: int | None = None) -> Answer:
    """Predict a plan by replaying another plan's trace with its own allocator settings or GPU.

    ``memory``: bytes of the GPU, in place of its own.
    """
    # Imported here: an answer from the cache does not need it.
    from memcalc.estimation.predict import predict_by_replay
    from memcalc.estimation.question import look_up
    from memcalc.estimation.replays import Replays

    try:
        run = Replays(base.trace, _import_engine().player(plan))
        return predict_by_replay(look_up(plan, memory), run, base.prediction)
    except MemcalcError as error:
        return error


def _find_run(plan: Plan) -> object:
    """Return a key that is equal for all plans that one run answers.

    They differ in settings of the allocator, and in GPUs of one compute capability with equally
    many multiprocessors, which run the same kernels. A generation runs on its GPU's size, and ranks
    are runs of their own.
    """
    alone = plan.target != "cpu" and plan.generate is None and plan.engine is None
    if not alone or plan.devices > 1 or plan.rank is not None:
        return plan
    gpu = gpus.find(plan.gpu) if plan.gpu is not None else None
    kernels = (gpu.capability, gpu.multiprocessors) if gpu is not None else None
    return replace(plan, alloc_conf="", gpu=None), kernels


def _import_engine() -> Engine:
    """Return the engine; imported here, because a cached answer does not need it."""
    from memcalc.estimation.engine import engine

    return engine


def room() -> int:
    """Return how many simulated runs fit the machine's cores and free memory; at least 1."""
    return max(1, min(len(os.sched_getaffinity(0)), free_memory() // RUN_BYTES))


def free_memory() -> int:
    """Return the bytes of main memory that new processes may take, here or in this container."""
    import psutil

    left = _free_container_memory()
    available: int = psutil.virtual_memory().available
    return available if left is None else min(available, left)


def _free_container_memory() -> int | None:
    try:
        limit = int((_CGROUP / "memory.max").read_text(encoding="ascii"))
        return limit - int((_CGROUP / "memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):
        # No limit ("max"), or not version 2 of control groups.
        return None
