"""The same plan on every GPU of the catalogue, and the plan with other settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.catalog import gpus as catalog
from memcalc.errors import MemcalcError
from memcalc.estimation.fits import Device, device_of
from memcalc.fitting.oracle import Oracle
from memcalc.fitting.records import GpuFit, Probe, Setting
from memcalc.kernels.architectures import ARCHITECTURES
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, FitVerdict


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


class _Change(msgspec.Struct, frozen=True):
    options: str
    fields: dict[str, Any]
    rank: int
    cost: str


_SAME = "none: the same arithmetic"
_EXPANDABLE = "expandable_segments:True"
_RECOMPUTE = "one more forward, about a third more time (Chen et al. 2016, arXiv:1604.06174)"
_8BIT = "optimizer state in 8 bit, results as in 32 bit where tried (Dettmers et al. 2021, "
_8BIT += "arXiv:2110.02861)"
_MIXED = "products in 16 bit, weights stay fp32 (Micikevicius et al. 2017, arXiv:1710.03740)"


def _changes(plan: Plan) -> list[_Change]:
    """What could be changed, cheapest first."""
    changes = []
    if plan.optim in ("adamw", "adam"):
        fused = "adamw_torch_fused" if plan.optim == "adamw" else None
        if fused is not None:
            changes.append(_Change(f"--optim {fused}", {"optim": fused}, 0, _SAME))
    if not plan.alloc_conf:
        options = f"--alloc-conf {_EXPANDABLE}"
        changes.append(_Change(options, {"alloc_conf": _EXPANDABLE}, 0, _SAME))
    if plan.attention in ("eager", "math"):
        changes.append(_Change("--attention auto", {"attention": "auto"}, 0, _SAME))
    if plan.batch > 1:
        half = plan.batch // 2
        changes.append(
            _Change(
                f"--batch {half} --grad-accum {plan.grad_accum * 2}",
                {"batch": half, "grad_accum": plan.grad_accum * 2},
                1,
                "smaller kernels; the same samples in each step",
            )
        )
    if not plan.checkpointing:
        changes.append(_Change("--checkpointing", {"checkpointing": True}, 1, _RECOMPUTE))
    changes += _other_arithmetic(plan)
    if plan.lora is None and not plan.freeze:
        lora = "r=16,target=all-linear"
        cost = "trains adapters, not the model (Hu et al. 2021, arXiv:2106.09685)"
        changes.append(_Change(f"--lora {lora}", {"lora": lora}, 3, cost))
    return changes


def _other_arithmetic(plan: Plan) -> list[_Change]:
    changes = []
    light = {"optim": "adam8bit"} if plan.optim.startswith("adam") and "8" not in plan.optim else {}
    if light:
        changes.append(_Change("--optim adam8bit", light, 2, _8BIT))
    mixed = _mixed(plan)
    if plan.precision in ("fp32", "tf32"):
        changes.append(_Change(f"--precision {mixed}", {"precision": mixed}, 2, _MIXED))
    if light and not plan.checkpointing:
        both = {**light, "checkpointing": True}
        cost = f"{_RECOMPUTE}; 8-bit state"
        changes.append(_Change("--checkpointing --optim adam8bit", both, 2, cost))
    if plan.precision in ("fp32", "tf32", "amp-bf16") and mixed == "amp-bf16":
        cost = "weights and state lose bits: small updates can round to nothing"
        changes.append(_Change("--precision bf16", {"precision": "bf16"}, 3, cost))
    return changes


def _mixed(plan: Plan) -> str:
    """bf16 where Tensor Cores know it."""
    modern = plan.gpu is None or ARCHITECTURES[catalog.find(plan.gpu).capability].bf16
    return "amp-bf16" if modern else "amp-fp16"


def settings_that_fit(plan: Plan, device: Device, oracle: Oracle) -> tuple[Setting, ...]:
    """Each change to the plan, really traced; those that fit first, cheapest first."""
    base = oracle.verify(plan, device).fit
    rows = [_tried(change, plan, base, device, oracle) for change in _changes(plan)]
    return tuple(sorted(rows, key=_order))


def _tried(change: _Change, plan: Plan, base: Fit, device: Device, oracle: Oracle) -> Setting:
    row = Setting(options=change.options, cost=change.cost, rank=change.rank, fit=None, saved=None)
    try:
        found = oracle.verify(replace(plan, **change.fields), device).fit
    except MemcalcError as error:
        return replace(row, reason=str(error))
    return replace(row, fit=found, saved=base.needed - found.needed)


def _order(row: Setting) -> tuple[int, int, int]:
    if row.fit is None:
        return 2, row.rank, 0
    return int(row.fit.verdict is not FitVerdict.FITS), row.rank, row.fit.needed
