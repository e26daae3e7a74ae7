"""The same plan on every GPU of the catalogue."""

from __future__ import annotations

from collections.abc import Callable

from msgspec.structs import replace

from memcalc.catalog import gpus as catalog
from memcalc.errors import MemcalcError
from memcalc.estimation.fits import Device, device_of
from memcalc.fitting.oracle import Oracle
from memcalc.fitting.records import GpuFit, Probe
from memcalc.records.plan import Plan
from memcalc.records.prediction import FitVerdict


def gpus_that_fit(plan: Plan, oracle: Oracle) -> tuple[GpuFit, ...]:
    """The plan on every GPU, smallest first; each with the kernels of that GPU.

    The smallest one that fits is traced in full.
    """
    rows: list[GpuFit] = []
    for gpu in sorted(catalog.table(), key=lambda gpu: gpu.memory):
        row = _on(gpu, plan, oracle.probe)
        if _fits(row) and not any(map(_fits, rows)):
            row = _on(gpu, plan, oracle.verify)
        rows.append(row)
    return tuple(rows)


def _fits(row: GpuFit) -> bool:
    return row.fit is not None and row.fit.verdict is FitVerdict.FITS


def _on(gpu: catalog.Gpu, plan: Plan, ask: Callable[[Plan, Device], Probe]) -> GpuFit:
    there = replace(plan, gpu=gpu.name)
    try:
        found = ask(there, device_of(gpu, plan=there)).fit
    except MemcalcError as error:
        return GpuFit(name=gpu.name, capacity=gpu.memory, fit=None, reason=str(error))
    return GpuFit(name=gpu.name, capacity=gpu.memory, fit=found)
