"""The same plan on every GPU of the catalog."""

from __future__ import annotations

import functools

from msgspec.structs import replace

from memcalc.advice.fit.oracle import Oracle
from memcalc.advice.fit.records import GpuFit
from memcalc.catalog import gpus as catalog
from memcalc.errors import MemcalcError
from memcalc.estimation.fits import device_of
from memcalc.records.plan import Plan


def gpus_that_fit(plan: Plan, oracle: Oracle) -> tuple[GpuFit, ...]:
    """The plan on every GPU, smallest first; each with the kernels of that GPU.

    GPUs of one compute capability with equally many multiprocessors run the same kernels: the plan
    is run once for all of them.
    """
    alike: dict[tuple[tuple[int, int], int], list[catalog.Gpu]] = {}
    for gpu in catalog.table():
        alike.setdefault((gpu.capability, gpu.multiprocessors), []).append(gpu)
    jobs = [functools.partial(_on, gpus, plan, oracle) for gpus in alike.values()]
    rows = [row for found in oracle.each(jobs) for row in found]
    return tuple(sorted(rows, key=lambda row: row.capacity))


def _on(gpus: list[catalog.Gpu], plan: Plan, oracle: Oracle) -> list[GpuFit]:
    there = [replace(plan, gpu=gpu.name) for gpu in gpus]
    devices = [device_of(gpu, plan=one) for gpu, one in zip(gpus, there, strict=True)]
    try:
        fits = oracle.fits(there[0], devices)
    except MemcalcError as error:
        reason = str(error)
        return [GpuFit(name=g.name, capacity=g.memory, fit=None, reason=reason) for g in gpus]
    return [
        GpuFit(name=gpu.name, capacity=gpu.memory, fit=fit)
        for gpu, fit in zip(gpus, fits, strict=True)
    ]
