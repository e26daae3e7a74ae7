"""``memcalc.fit``: finds what fits a plan's GPU."""

import itertools
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from memcalc.advice.fit.devices import devices_that_fit
from memcalc.advice.fit.limits import LimitSearch, longest_seq, read_probe
from memcalc.advice.fit.records import FitAnswer, GpuFit, Grid, Limit, Probe
from memcalc.advice.remedies.records import Trial, fit_goal
from memcalc.advice.remedies.search import advise
from memcalc.advice.remedies.trials import Trials
from memcalc.catalog import gpus as catalog
from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answer, Answers
from memcalc.estimation.fits import make_device
from memcalc.estimation.predict import UNCOUNTED
from memcalc.estimation.question import check, look_up
from memcalc.records.fields import name_settings
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict
from memcalc.workload import layouts

_FINDS = ("batch", "seq", "grid", "gpus", "settings", "devices")
_GRID_SEQS: tuple[int, ...] = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
_GRID_SEQS += (1024, 1536, 2048, 3072, 4096, 6144, 8192)
_GRID_SIZE = 10
Seen = Callable[[FitAnswer], None]


@name_settings
def fit(
    model: str | Plan,
    *,
    memory: int | None = None,
    find: Collection[str] = ("batch", "seq"),
    use_cache: bool = True,
    **settings: Any,
) -> FitAnswer:
    """Find what fits a GPU: the largest batch and sequence, other GPUs, other settings.

    Args:
        model: as for ``estimate``.
        memory: bytes of the device, in place of the GPU's own.
        find: some of ``batch``, ``seq``, ``grid``, ``gpus``, ``settings``, ``devices``.
        use_cache: keep and reuse what is learned on disk.
        **settings: fields of ``Plan``; ``gpu`` says where to fit.

    Returns:
        What fits; all sizes are unrounded bytes.

    Raises:
        UsageError: the question cannot be understood.
        EstimateError: it could not be answered.
    """
    return answer(make({"model": model, **settings}), find, memory=memory, use_cache=use_cache)


def answer(
    plan: Plan,
    find: Collection[str],
    *,
    memory: int | None = None,
    among: Sequence[catalog.Gpu] | None = None,
    use_cache: bool = True,
    seen: Seen = lambda so_far: None,
) -> FitAnswer:
    """Find what fits the plan's GPU; ``among``: the GPUs to try, else those that clouds rent.

    ``seen`` is called with the answer so far each time that more of it is known.
    """
    checked = check(plan)
    _check_question(plan, find, memory)
    # The operations of a step are the cost of some settings.
    counted = "settings" in find
    answers = Answers(
        use_cache=use_cache, workers=None, counted=counted, figures=True, memory=memory
    )
    so_far = _PartialAnswer(FitAnswer(plan=plan), seen)
    if "devices" in find:
        so_far.add(devices=devices_that_fit(plan, answers))
    if "settings" in find:
        so_far.add(**with_settings(plan, answers))
    if plan.gpu is not None or memory is not None:
        _add_limits(so_far, find, answers)
    if "gpus" in find:
        _try_all_gpus(so_far, among or catalog.list_rental_gpus(), answers)
    found = so_far.answer
    longest = max((one.best.seq or 0 for one in found.limits if one.best is not None), default=0)
    assumed = (*_note_micro_batches(plan, found), *found.assumptions, *checked.notes_at(longest))
    return replace(
        found,
        traces=answers.runs,
        assumptions=tuple(dict.fromkeys(assumed)),
        uncounted=found.uncounted or (*plan.unread, *UNCOUNTED),
    )


def _note_micro_batches(plan: Plan, found: FitAnswer) -> Iterator[str]:
    """Yield a note that pipeline stages divide every batch into micro-batches, if so."""
    count = layouts.microbatches(plan)
    if count > 1 and any(limit.axis == "batch" for limit in found.limits):
        yield f"every batch is divided into {count} micro-batches (n_microbatches)"


class _PartialAnswer:
    """An answer of ``fit`` that is filled in bit by bit, by several threads."""

    def __init__(self, answer: FitAnswer, seen: Seen) -> None:
        self.answer = answer
        self._seen = seen
        self._lock = threading.Lock()

    def add(self, *limits: Limit, **known: Any) -> None:
        """Set fields of the answer, or the limit of an axis, and pass the answer to ``seen``."""
        with self._lock:
            for limit in limits:
                others = [one for one in self.answer.limits if one.axis != limit.axis]
                known["limits"] = tuple(sorted([*others, limit], key=lambda one: one.axis))
            self.answer = replace(self.answer, **known)
            self._seen(self.answer)


def _check_question(plan: Plan, find: Collection[str], memory: int | None) -> None:
    """Raise UsageError for an unknown ``find`` name, or options that contradict each other."""
    unknown = [name for name in find if name not in _FINDS]
    if unknown:
        raise UsageError(f"Unknown thing to find {unknown[0]!r}: choose {', '.join(_FINDS)}.")
    if plan.target == "cpu":
        raise UsageError("A CPU run has no GPU to fit: leave --target cpu out.")
    if plan.inputs:
        raise UsageError(
            "memcalc fit makes the batches itself, and --input describes them: use memcalc "
            "estimate with --gpu for this model."
        )
    if "devices" in find and (plan.gpu is None or memory is not None):
        raise UsageError("How many of which GPU? Name it with --gpu, and leave --memory out.")
    if memory is not None and memory < 1:
        raise UsageError(f"memory = {memory} is not a positive size.")
    if plan.gpu is None and memory is None and ("settings" in find or "gpus" not in find):
        raise UsageError("Fit what? Name a GPU with --gpu, or a size with --memory '10 GiB'.")


def _try_all_gpus(so_far: _PartialAnswer, among: Sequence[catalog.Gpu], answers: Answers) -> None:
    """Add whether the plan fits each GPU, the cheapest first."""
    rows: list[GpuFit] = []
    plans = [replace(so_far.answer.plan, gpu=gpu.name) for gpu in among]
    for gpu, found in zip(among, answers.predict(plans), strict=True):
        price = catalog.prices().of.get(gpu.name)
        row = GpuFit(name=gpu.name, capacity=gpu.memory, price=price, fit=None)
        if isinstance(found, MemcalcError):
            row = replace(row, reason=str(found))
        else:
            row = replace(row, fit=found.fit, reason=found.unknown.get("fit", ""))
        rows = sorted([*rows, row], key=lambda row: (row.price is None, row.price, row.capacity))
        so_far.add(gpus=tuple(rows), **_copy_notes(found))


def _copy_notes(found: Answer) -> dict[str, Any]:
    """Return the assumptions and uncounted items of an estimate as fields of ``FitAnswer``."""
    if isinstance(found, MemcalcError):
        return {}
    return {"assumptions": found.assumptions, "uncounted": found.uncounted}


def _add_limits(so_far: _PartialAnswer, find: Collection[str], answers: Answers) -> None:
    """Add whether the plan fits its device, the largest batch and sequence, and the grid."""
    plan = so_far.answer.plan
    question = look_up(plan, answers.memory)
    device = make_device(question.gpu, question)
    so_far.add(device=device.name, capacity=device.capacity, context=device.context)
    here = so_far.answer.here
    if here is None:
        found = answers.predict_one(plan)
        here = read_probe(found)
        so_far.add(here=here, **_copy_notes(found))
    asked = [axis for axis in ("batch", "seq") if axis in find and (axis == "batch" or here.seq)]
    limits = [LimitSearch(axis, plan, here, answers, so_far.add) for axis in asked]
    reasons = dict(zip(asked, answers.map_parallel(LimitSearch.find, limits), strict=True))
    so_far.add(unknown={axis: why for axis, why in reasons.items() if why})
    if "grid" in find:
        so_far.add(grid=_estimate_grid(plan, here.seq, answers))


def with_settings(plan: Plan, answers: Answers) -> dict[str, Any]:
    """Estimate every remedy alone, and search the cheapest combination that fits.

    Returns:
        The fields that it adds to an answer.

    Raises:
        MemcalcError: the plan itself cannot be traced.
    """
    traced = answers.trace(plan)
    trials = Trials(traced, answers)
    before = trials.before
    assert before.fit is not None
    tried, found = advise(trials, fit_goal(before))

    def order(trial: Trial) -> tuple[int, int, int]:
        """Return a key that sorts what fits first, then by cost, then by need."""
        fit = trial.figures.fit if trial.figures is not None else None
        if fit is None:
            return 2, trial.remedy.rank, 0
        return int(not fit.fits), trial.remedy.rank, fit.needed

    return {
        "here": Probe(batch=before.plan.batch, seq=traced.trace.seq, fit=before.fit),
        "before": before,
        "settings": tuple(sorted(tried, key=order)),
        "search": found,
        **_copy_notes(traced.prediction),
    }


def _estimate_grid(plan: Plan, seq: int | None, answers: Answers) -> Grid:
    """Estimate batches 1, 2, 4... by sequence lengths, and whether each fits."""
    longest = longest_seq(plan) or _GRID_SEQS[-1]
    seqs: tuple[int | None, ...] = (None,)
    if seq is not None:
        seqs = tuple(size for size in _GRID_SEQS if size <= longest)[-_GRID_SIZE:]
    batches = tuple(1 << power for power in range(_GRID_SIZE))
    plans = [replace(plan, batch=batch, seq=length) for length in seqs for batch in batches]
    probes = iter(probe_all(plans, answers))
    cells = tuple(tuple(itertools.islice(probes, len(batches))) for _ in seqs)
    return Grid(batches=batches, seqs=seqs, cells=cells)


def probe_all(plans: Sequence[Plan], answers: Answers) -> list[Probe]:
    """Estimate whether each plan fits; skip those larger than one that does not.

    A plan at least as large as one that does not fit is not run: its ``fit`` is the smaller one's,
    with ``allocated`` as its ``fit.metric``, for the least that it needs.

    Raises:
        MemcalcError: one could not be estimated.
    """
    found: dict[Plan, Probe] = {}
    too_large: list[tuple[Plan, Probe]] = []

    def probe_one(plan: Plan) -> None:
        """Add a plan's probe, without a run if a smaller plan is known not to fit."""
        for other, probe in list(too_large):
            if plan.batch >= other.batch and (plan.seq or 0) >= (other.seq or 0):
                fit = replace(probe.fit, metric="allocated", needed_high=None, retries=0)
                found[plan] = Probe(batch=plan.batch, seq=plan.seq, fit=fit)
                return
        found[plan] = read_probe(answers.predict_one(plan))
        if found[plan].fit.verdict is FitVerdict.DOES_NOT_FIT:
            too_large.append((plan, found[plan]))

    by_size = sorted(plans, key=lambda plan: plan.batch * (plan.seq or 1))
    list(answers.map_parallel(probe_one, by_size))
    return [found[plan] for plan in plans]
