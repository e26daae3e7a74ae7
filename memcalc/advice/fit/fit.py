"""``memcalc.fit``: finds what fits a plan's GPU."""

import itertools
import math
import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any

from msgspec.structs import replace

from memcalc.advice import search
from memcalc.advice.fit.devices import devices_that_fit, gpus_that_fit
from memcalc.advice.fit.records import FitAnswer, Grid, Limit, Probe
from memcalc.advice.fit.runs import Runs
from memcalc.advice.remedies.records import Option, fitting
from memcalc.advice.remedies.search import advise
from memcalc.advice.remedies.trials import Trials
from memcalc.catalog import gpus as catalog
from memcalc.catalog.gpus import Architecture, architectures
from memcalc.catalog.plan import make
from memcalc.errors import MemcalcError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.fits import Device, device_of, margin
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
    seen: Callable[[FitAnswer], None] = lambda so_far: None,
) -> FitAnswer:
    """Answer a question about a plan; see ``fit``. Without ``among``: the GPUs that clouds rent.

    ``seen`` is called with the answer so far each time that more of it is known.
    """
    unknown = [name for name in find if name not in _FINDS]
    if unknown:
        raise UsageError(f"Unknown thing to find {unknown[0]!r}: choose {', '.join(_FINDS)}.")
    checked = check(plan)
    _refuse(plan, find, memory)
    answers = Answers(use_cache=use_cache, workers=None, counted=True)
    so_far = _SoFar(FitAnswer(plan=plan), seen)
    if "devices" in find:
        so_far.add(devices=devices_that_fit(plan, answers))
    if "settings" in find:
        so_far.add(**with_settings(plan, memory, answers))
    runs = Runs(answers, checked.source.config)
    if plan.gpu is not None or memory is not None:
        _on_device(so_far, find, memory, runs)
    if "gpus" in find:
        for rows in gpus_that_fit(plan, among or catalog.rented(), runs):
            so_far.add(gpus=rows)
    found = so_far.answer
    longest = max((one.best.seq or 0 for one in found.limits if one.best is not None), default=0)
    return replace(
        found,
        traces=found.traces + runs.count,
        assumptions=(*(runs.assumptions or found.assumptions), *checked.notes_at(longest)),
        uncounted=(*(runs.uncounted or found.uncounted), *plan.unread, *UNCOUNTED),
    )


class _SoFar:
    """An answer that grows; threads may share it."""

    def __init__(self, answer: FitAnswer, seen: Callable[[FitAnswer], None]) -> None:
        self.answer = answer
        self._seen = seen
        self._lock = threading.Lock()

    def add(self, **known: Any) -> None:
        """Set fields of the answer, and show it."""
        with self._lock:
            self.answer = replace(self.answer, **known)
            self._seen(self.answer)

    def add_limit(self, limit: Limit) -> None:
        """Set the limit of an axis in place of the one before."""
        with self._lock:
            others = [one for one in self.answer.limits if one.axis != limit.axis]
            limits = sorted([*others, limit], key=lambda one: one.axis)
            self.answer = replace(self.answer, limits=tuple(limits))
            self._seen(self.answer)


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


def _on_device(so_far: _SoFar, find: Collection[str], memory: int | None, runs: Runs) -> None:
    plan = so_far.answer.plan
    gpu = catalog.find(plan.gpu) if plan.gpu is not None else None
    device = device_of(gpu, memory, plan)
    so_far.add(device=device.name, capacity=device.capacity, context=device.context)
    here = so_far.answer.here
    if here is None or not {"batch", "seq", "grid"}.isdisjoint(find):
        here = runs.probe(plan, device)
        so_far.add(here=here)
    asked = [axis for axis in ("batch", "seq") if axis in find and (axis == "batch" or here.seq)]
    limits = [_Limits(axis, plan, here, device, runs, so_far.add_limit) for axis in asked]
    reasons = dict(zip(asked, runs.each([one.find for one in limits]), strict=True))
    so_far.add(unknown={axis: why for axis, why in reasons.items() if why})
    if "grid" in find:
        so_far.add(grid=_grid(plan, here.seq, device, runs))


def with_settings(plan: Plan, memory: int | None, answers: Answers) -> dict[str, Any]:
    """Try every remedy on the plan, and the cheapest of them together where it does not fit.

    Returns:
        What it adds to an answer, by field.

    Raises:
        MemcalcError: the plan itself cannot be traced.
    """
    traced = answers.trace(plan)
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
    return {
        "here": Probe(batch=before.plan.batch, seq=traced.trace.seq, fit=before.fit),
        "before": before,
        "settings": tuple(sorted(options, key=order)),
        "search": found,
        "traces": made + (len(found.trials) if found is not None else 0),
        "assumptions": traced.trace.assumptions,
        "uncounted": traced.trace.uncounted,
    }


class _Limits:
    """The search for the largest batch or sequence that fits a device."""

    def __init__(
        self,
        axis: str,
        plan: Plan,
        here: Probe,
        device: Device,
        runs: Runs,
        seen: Callable[[Limit], None],
    ) -> None:
        self._plan, self._here, self._device, self._runs = plan, here, device, runs
        self._seen = seen
        self._limit = Limit(
            axis=axis,
            step=1 if axis == "batch" else SEQ_STEP,
            best=None,
            above=None,
            perhaps=None,
            exact=False,
        )
        self._known: dict[int, Probe] = {}
        size = self._limit.value(here)
        if size and size % self._limit.step == 0:
            self._known[size] = here

    def find(self) -> str:
        """Find the limit and show it; return why there is none: some models take one length."""
        step = self._limit.step
        longest = self._runs.longest(self._plan) or _MOST_SEQ
        most = _MOST_BATCH if self._limit.axis == "batch" else longest
        sizes = range(step, most // step * step + 1, step)
        start = self._limit.value(self._here) or step
        try:
            found = search.largest(self._ask, sizes, start)
            if found.best is None and self._is_tight(sizes[0]):
                search.largest(self._may_fit, sizes, start)
        except UsageError as error:
            if self._limit.axis == "batch":
                raise
            return str(error)
        best = self._known[found.best] if found.best is not None else None
        above = self._known.get(found.above) if found.above is not None else None
        step = found.above - found.best if found.above and found.best else step
        self._limit = replace(self._limit, best=best, above=above, step=step, exact=True)
        gpu = self._plan.gpu
        capability = catalog.find(gpu).capability if gpu else ASSUMED.capability
        architecture = architectures()[capability]
        self._seen(advised(self._limit, self._plan, self._here.seq, architecture))
        return ""

    def _is_tight(self, size: int) -> bool:
        return size in self._known and self._known[size].fit.verdict is FitVerdict.TIGHT

    def _ask(self, size: int) -> search.Sample:
        """Return whether a size fits; one that cannot be run does not."""
        probe = self._probe(size)
        if probe is None:
            return search.Sample(holds=False, spare=None)
        fit = probe.fit
        spare = fit.least_margin - margin(fit.capacity) if not fit.retries else None
        return search.Sample(holds=fit.fits, spare=spare)

    def _may_fit(self, size: int) -> search.Sample:
        """Return whether a size fits, or is tight; a device that is full tells no bound."""
        probe = self._probe(size)
        holds = probe is not None and probe.fit.verdict is not FitVerdict.DOES_NOT_FIT
        return search.Sample(holds=holds, spare=None)

    def _probe(self, size: int) -> Probe | None:
        if size in self._known:
            return self._known[size]
        plan = replace(self._plan, **{self._limit.axis: size})
        try:
            probe = self._runs.probe(plan, self._device)
        except MemcalcError as error:
            if not self._known or size < min(self._known):
                raise
            # Longer than the model takes, or its tensors have no room on any GPU.
            reason = "" if isinstance(error, UsageError) else str(error)
            self._limit = replace(self._limit, reason=reason)
            return None
        self._known[size] = probe
        self._limit = self._so_far()
        self._seen(self._limit)
        return probe

    def _so_far(self) -> Limit:
        """Return the limit as far as its runs enclose it."""
        order = sorted(self._known)
        fitting = [size for size in order if self._known[size].fit.fits]
        best = max(fitting, default=0)
        tight = [n for n in order if self._known[n].fit.verdict is FitVerdict.TIGHT and n > best]
        above = next((size for size in order if size > best), None)
        return replace(
            self._limit,
            best=self._known[best] if best else None,
            above=self._known[above] if above is not None else None,
            perhaps=self._known[tight[-1]] if tight else None,
        )


def _grid(plan: Plan, seq: int | None, device: Device, runs: Runs) -> Grid:
    longest = runs.longest(plan) or _GRID_SEQS[-1]
    seqs: tuple[int | None, ...] = (None,)
    if seq is not None:
        seqs = tuple(size for size in _GRID_SEQS if size <= longest)[-_GRID_SIZE:]
    batches = tuple(1 << power for power in range(_GRID_SIZE))
    plans = [replace(plan, batch=batch, seq=length) for length in seqs for batch in batches]
    probes = iter(runs.table(plans, device))
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
