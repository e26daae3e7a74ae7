"""Searches the largest batch or sequence that fits a device, and advises a size below it."""

import math
from collections.abc import Callable

from msgspec.structs import replace

from memcalc.advice import search
from memcalc.advice.fit.records import Limit, Probe
from memcalc.catalog.gpus import Architecture
from memcalc.errors import EstimateError, MemcalcError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.fits import margin
from memcalc.estimation.question import look_up
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict, Prediction
from memcalc.workload import layouts

SEQ_STEP = 8
"""Sequences are tried in multiples of this: attention kernels pad others."""
_MOST_BATCH = 1 << 20
_MOST_SEQ = 1 << 24
_GUIDE = "NVIDIA, Matrix Multiplication Background User's Guide"


def read_probe(found: Prediction) -> Probe:
    """Return an estimate's batch, sequence and whether it fits.

    Raises:
        EstimateError: it is not known.
    """
    if found.fit is None:
        raise EstimateError(found.unknown["fit"])
    return Probe(batch=found.plan.batch, seq=found.seq, fit=found.fit)


def longest_seq(plan: Plan) -> int | None:
    """Return the longest sequence the model takes, or None if no limit is known."""
    named = look_up(plan).lengths.longest
    return named - (plan.generate or 1) + 1 if named is not None else None


class LimitSearch:
    """The search for the largest batch or sequence that fits a device."""

    def __init__(
        self,
        axis: str,
        plan: Plan,
        here: Probe,
        answers: Answers,
        seen: Callable[[Limit], None],
    ) -> None:
        self._plan, self._here, self._answers, self._seen = plan, here, answers, seen
        step = layouts.microbatches(plan) if axis == "batch" else SEQ_STEP
        if axis == "batch" and step > 1:
            # More of them cost time and no memory: each is to grow.
            given = {**dict(plan.parallel_args), "n_microbatches": step}
            self._plan = replace(plan, parallel_args=tuple(given.items()))
        self._limit = Limit(axis=axis, step=step, best=None, above=None, perhaps=None, exact=False)
        size = self._limit.value(here)
        self._known: dict[int, Probe] = {size: here} if size and size % step == 0 else {}

    def find(self) -> str:
        """Search the limit, passing it to ``seen``; return why no limit exists, or ""."""
        step, by_batch = self._limit.step, self._limit.axis == "batch"
        most = _MOST_BATCH if by_batch else longest_seq(self._plan) or _MOST_SEQ
        sizes = range(step, most // step * step + 1, step)
        start = self._limit.value(self._here) or step
        try:
            found = search.largest(self._ask, sizes, start)
            if found.best is None and self._verdict(sizes[0]) is FitVerdict.TIGHT:
                search.largest(self._may_fit, sizes, start)
        except UsageError as error:
            if by_batch:
                raise
            return str(error)
        self._limit = replace(
            self._limit,
            best=self._known[found.best] if found.best is not None else None,
            above=self._known.get(found.above) if found.above is not None else None,
            step=found.above - found.best if found.above and found.best else step,
            exact=True,
        )
        architecture = look_up(self._plan).target.architecture
        self._seen(with_advice(self._limit, self._plan, self._here.seq, architecture))
        return ""

    def _verdict(self, size: int) -> FitVerdict | None:
        """Return the verdict of a size that was estimated, else None."""
        return self._known[size].fit.verdict if size in self._known else None

    def _ask(self, size: int) -> search.Sample:
        """Estimate a size: whether it fits, and the bytes to spare; an error counts as no."""
        probe = self._probe(size)
        if probe is None:
            return search.Sample(holds=False, spare=None)
        fit = probe.fit
        spare = fit.least_margin - margin(fit.capacity) if not fit.retries else None
        return search.Sample(holds=fit.fits, spare=spare)

    def _may_fit(self, size: int) -> search.Sample:
        """Estimate a size: whether it fits or is tight, without bytes to spare."""
        self._probe(size)
        holds = self._verdict(size) in (FitVerdict.FITS, FitVerdict.TIGHT, FitVerdict.LEAKS)
        return search.Sample(holds=holds, spare=None)

    def _probe(self, size: int) -> Probe | None:
        """Estimate a size once and update the limit; None if the model cannot run it."""
        if size in self._known:
            return self._known[size]
        plan = replace(self._plan, **{self._limit.axis: size})
        try:
            probe = read_probe(self._answers.predict_one(plan))
        except MemcalcError as error:
            if not self._known or size < min(self._known):
                raise
            # Longer than the model takes, or its tensors have no room on any GPU.
            reason = "" if isinstance(error, UsageError) else str(error)
            self._limit = replace(self._limit, reason=reason)
            return None
        self._known[size] = probe
        order = sorted(self._known)
        best = max((size for size in order if self._known[size].fit.fits), default=0)
        larger = [size for size in order if size > best]
        tight = [size for size in larger if self._verdict(size) is FitVerdict.TIGHT]
        self._limit = replace(
            self._limit,
            best=self._known[best] if best else None,
            above=self._known[larger[0]] if larger else None,
            perhaps=self._known[tight[-1]] if tight else None,
        )
        self._seen(self._limit)
        return probe


def multiple(precision: str, architecture: Architecture) -> int:
    """Return what a batch's tokens should be a multiple of for Tensor Cores; 1 without them.

    Source: NVIDIA, Matrix Multiplication Background User's Guide, "Requirements to use Tensor
    Cores": dimensions that are multiples of 16 bytes are most efficient, of 128 bytes on an A100.
    In a transformer the dimension that batch and sequence decide is their product.
    """
    element = 2 if "16" in precision else 4
    if precision == "fp32" or (precision == "tf32" and not architecture.tf32):
        return 1
    return architecture.tile_bytes // element or 1


def with_advice(limit: Limit, plan: Plan, seq: int | None, architecture: Architecture) -> Limit:
    """Return the limit with a suggested size: the largest Tensor Core multiple up to it."""
    most = limit.value(limit.best)
    if most is None:
        return limit
    wanted = multiple(plan.precision, architecture)
    guide = f"Tensor Cores are fastest with multiples of {wanted} in {plan.precision} ({_GUIDE})"
    size, step = most, wanted // math.gcd(wanted, seq or 1)
    if wanted == 1:
        guide = "matrix products here do not use Tensor Cores, so any size is fine"
    elif limit.axis == "seq":
        size = most - most % wanted or most
    elif step == 1:
        guide = f"any batch size gives a multiple of {wanted} tokens; {guide}"
    elif most < step:
        guide = f"too small for a multiple of {wanted} tokens; {guide}"
    else:
        size = most - most % step
    return replace(limit, suggested=size, advice=guide)
