"""``memcalc.fit``: finds what fits a plan's GPU."""

import functools
import itertools
import math
from collections.abc import Collection, Sequence
from typing import Any

from msgspec.structs import replace

from memcalc.advice.fit import search
from memcalc.advice.fit.devices import devices_that_fit, gpus_that_fit
from memcalc.advice.fit.records import FitAnswer, Grid, Limit, Probe
from memcalc.advice.fit.search import Oracle
from memcalc.advice.remedies.records import Option, fitting
from memcalc.advice.remedies.search import advise
from memcalc.advice.remedies.trials import Trials
from memcalc.catalog import gpus as catalog
from memcalc.catalog.gpus import ARCHITECTURES, Architecture
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.fits import Device, device_of
from memcalc.estimation.predict import UNCOUNTED
from memcalc.estimation.question import ASSUMED
from memcalc.estimation.validate import check
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict

SEQ_STEP = 8
"""Sequences are tried in multiples of this: attention kernels pad others."""
_FINDS = ("batch", "seq", "grid", "gpus", "settings", "devices")
_MOST_BATCH = 1 << 20
_MOST_SEQ = 1 << 24
_GRID_SEQS: tuple[int, ...] = (16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768)
_GRID_SEQS += (1024, 1536, 2048, 3072, 4096, 6144, 8192)
_GRID_SIZE = 10


def fit(
    model: str,
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
) -> FitAnswer:
    """Answer a question about a plan; see ``fit``. Without ``among``: the GPUs that clouds rent."""
    unknown = [name for name in find if name not in _FINDS]
    if unknown:
        raise UsageError(f"Unknown thing to find {unknown[0]!r}: choose {', '.join(_FINDS)}.")
    checked = check(plan)
    _refuse(plan, find, memory)
    answers = Answers(use_cache=use_cache, workers=None, counted=True)
    found = FitAnswer(plan=plan)
    if "devices" in find:
        found = replace(found, devices=devices_that_fit(plan, answers))
    if "settings" in find:
        found = with_settings(found, memory, answers)
    oracle = Oracle(answers, checked.source.config)
    if plan.gpu is not None or memory is not None:
        found = _on_device(found, find, memory, oracle)
    if "gpus" in find:
        found = replace(found, gpus=gpus_that_fit(plan, among or catalog.rented(), oracle))
    longest = max((one.best.seq or 0 for one in found.limits if one.best is not None), default=0)
    return replace(
        found,
        traces=found.traces + oracle.traces,
        assumptions=(*(oracle.assumptions or found.assumptions), *checked.notes_at(longest)),
        uncounted=(*(oracle.uncounted or found.uncounted), *plan.unread, *UNCOUNTED),
    )


def _refuse(plan: Plan, find: Collection[str], memory: int | None) -> None:
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


def _on_device(
    found: FitAnswer, find: Collection[str], memory: int | None, oracle: Oracle
) -> FitAnswer:
    plan = found.plan
    gpu = catalog.find(plan.gpu) if plan.gpu is not None else None
    device = device_of(gpu, memory, plan)
    here = found.here
    if here is None or not {"batch", "seq", "grid"}.isdisjoint(find):
        here = oracle.probe(plan, device)
    limits, unknown = [], {}
    has_length = here is not None and here.seq
    asked = [axis for axis in ("batch", "seq") if axis in find and (axis == "batch" or has_length)]
    jobs = [functools.partial(_limit_or_reason, axis, plan, here, device, oracle) for axis in asked]
    for axis, limit in zip(asked, oracle.each(jobs), strict=True):
        if isinstance(limit, Limit):
            limits.append(limit)
        else:
            unknown[axis] = limit
    return replace(
        found,
        device=device.name,
        capacity=device.capacity,
        context=device.context,
        here=here,
        limits=tuple(limits),
        grid=_grid(plan, here.seq, device, oracle) if "grid" in find else None,
        unknown=unknown,
    )


def with_settings(answer: FitAnswer, memory: int | None, answers: Answers) -> FitAnswer:
    """Try every remedy on the plan, and the cheapest of them together where it does not fit.

    Raises:
        MemcalcError: the plan itself cannot be traced.
    """
    traced = answers.trace(answer.plan)
    trials = Trials(traced, answers, memory)
    before = trials.before
    assert before.fit is not None
    options, found = advise(trials, fitting(before))

    def order(option: Option) -> tuple[int, int, int]:
        """What fits first, then what costs least, then what needs least."""
        fit = option.trial.figures.fit if option.trial.figures is not None else None
        if fit is None:
            return 2, option.remedy.rank, 0
        return int(not fit.fits), option.remedy.rank, fit.needed

    made = sum(option.trial.figures is not None for option in options) + 1
    return replace(
        answer,
        here=Probe(batch=before.plan.batch, seq=traced.trace.seq, fit=before.fit),
        before=before,
        settings=tuple(sorted(options, key=order)),
        search=found,
        traces=made + (len(found.trials) if found is not None else 0),
        assumptions=traced.trace.assumptions,
        uncounted=traced.trace.uncounted,
    )


def _limit_or_reason(
    axis: str, plan: Plan, here: Probe, device: Device, oracle: Oracle
) -> Limit | str:
    """The largest size; or why there is none to find: some models take one length only."""
    try:
        return _limit(axis, plan, here, device, oracle)
    except UsageError as error:
        if axis == "batch":
            raise
        return str(error)


def _limit(axis: str, plan: Plan, here: Probe, device: Device, oracle: Oracle) -> Limit:
    step = 1 if axis == "batch" else SEQ_STEP
    most = _MOST_BATCH if axis == "batch" else (oracle.longest(plan) or _MOST_SEQ) // step

    def at(size: int) -> Plan:
        return replace(plan, batch=size) if axis == "batch" else replace(plan, seq=size * step)

    start = max((here.batch if axis == "batch" else here.seq or step) // step, 1)

    @functools.cache
    def ask(size: int) -> Probe | None:
        try:
            return oracle.probe(at(size), device)
        except UsageError:
            if size <= start:
                raise
            # Longer than the model takes; its limit is not known beforehand.
            return None

    plain = best = search.largest(ask, search.fits, start=start, limit=most)
    gap = oracle.probe(at(best + 1), device) if best < most and ask(best + 1) else None
    if best:
        best = search.islands(ask, best, most)
    if best:
        perhaps = ask(search.beyond(ask, search.may_fit, best, most))
    else:
        perhaps = ask(search.largest(ask, search.may_fit, start=1, limit=most) or 1)
    above = ask(best + 1) if best < most else None
    tight = perhaps is not None and perhaps.fit.verdict is FitVerdict.TIGHT
    limit = Limit(
        axis=axis,
        step=step,
        best=ask(best) if best else None,
        above=above,
        perhaps=perhaps if tight else None,
        gap=gap if best > plain else None,
    )
    capability = catalog.find(plan.gpu).capability if plan.gpu else ASSUMED.capability
    return advised(limit, plan, here.seq, ARCHITECTURES[capability])


def _grid(plan: Plan, seq: int | None, device: Device, oracle: Oracle) -> Grid:
    longest = oracle.longest(plan) or _GRID_SEQS[-1]
    seqs: tuple[int | None, ...] = (None,)
    if seq is not None:
        seqs = tuple(size for size in _GRID_SEQS if size <= longest)[-_GRID_SIZE:]
    batches = tuple(1 << power for power in range(_GRID_SIZE))
    plans = [replace(plan, batch=batch, seq=length) for length in seqs for batch in batches]
    probes = iter(oracle.table(plans, device))
    cells = tuple(tuple(itertools.islice(probes, len(batches))) for _ in seqs)
    return Grid(batches=batches, seqs=seqs, cells=cells)


_GUIDE = "NVIDIA, Matrix Multiplication Background User's Guide"


def multiple(precision: str, architecture: Architecture) -> int:
    """What the tokens of a batch should be a multiple of; 1 where no Tensor Cores run.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, "Requirements to use Tensor
    Cores": dimensions that are multiples of 16 bytes are most efficient, of 128 bytes on an A100.
    In a transformer the dimension that batch and sequence decide is their product.
    """
    element = 2 if "16" in precision else 4
    if precision == "fp32" or (precision == "tf32" and not architecture.tf32):
        return 1
    return architecture.tile_bytes // element or 1


def advised(limit: Limit, plan: Plan, seq: int | None, architecture: Architecture) -> Limit:
    """The limit with the largest size up to it that makes whole tiles, and why."""
    most = limit.value(limit.best)
    if most is None:
        return limit
    wanted = multiple(plan.precision, architecture)
    guide = f"Tensor Cores like multiples of {wanted} in {plan.precision} ({_GUIDE})"
    size, step = most, wanted // math.gcd(wanted, seq or 1)
    if wanted == 1:
        guide = "matrix products here do not use Tensor Cores, so any size is fine"
    elif limit.axis == "seq":
        size = most - most % wanted or most
    elif step == 1:
        guide = f"any batch of {seq} tokens makes multiples of {wanted}; {guide}"
    elif most < step:
        guide = f"too few for multiples of {wanted} tokens; {guide}"
    else:
        size = most - most % step
    return replace(limit, suggested=size, advice=guide)
