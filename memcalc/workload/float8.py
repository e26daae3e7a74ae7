"""Linear layers whose products run in float8, by torchao's code as accelerate calls it.

Read in accelerate 1.15 (``utils/ao.py``) and torchao 0.18 (``float8/config.py``).
"""

from __future__ import annotations

import dataclasses
import importlib
from typing import TYPE_CHECKING, Any

from memcalc.catalog.gpus import Gpu
from memcalc.errors import SettingError
from memcalc.files import extras
from memcalc.records.plan import Plan
from memcalc.workload import layouts
from memcalc.workload.layouts import Layout

if TYPE_CHECKING:
    import torch

_SINCE = (8, 9)
"""The lowest compute capability with products in float8 (``torch._scaled_mm``)."""
_TENSORWISE = "tensorwise"


def check(plan: Plan, gpu: Gpu | None, layout: Layout) -> None:
    """Raise SettingError if torchao, a GPU or the layout has no products in float8."""
    missing = extras.lacking("--float8 needs", "torchao")
    if missing is not None:
        raise SettingError("float8", f"{missing}.")
    if gpu is None or gpu.capability < _SINCE:
        name = "an A100, which is assumed," if gpu is None else gpu.name
        why = f"{name} computes no products in float8: type --gpu 4090, h100 or newer."
        raise SettingError("float8", why)
    plain = layout.name == "fsdp2" and plan.loop == "plain"
    if layout.name not in ("single", "ddp") and not plain:
        why = "float8 is for one GPU, ddp, or fsdp2 in the plain loop: leave it out."
        raise SettingError("float8", why)


def apply(model: torch.nn.Module, plan: Plan) -> None:
    """Replace a model's linear layers, except the first and the last, by torchao's in float8.

    Layers whose sizes are not multiples of 16 stay as they are.
    """
    convert: Any = importlib.import_module("accelerate.utils.ao").convert_model_to_fp8_ao
    convert(model, config=_make_config(plan))


def precompute_scales(model: torch.nn.Module, optimizer: torch.optim.Optimizer, plan: Plan) -> None:
    """Let an optimizer's step compute all scales for the next gathering, as accelerate does."""
    if _gathers_in_float8(plan):
        compute: Any = importlib.import_module("torchao.float8")
        optimizer.register_step_post_hook(
            lambda *_: compute.precompute_float8_dynamic_scale_for_fsdp(model)
        )


def describe(plan: Plan) -> str:
    """Return a sentence on which layers compute in float8, and how their weights are gathered."""
    gathered = ", and FSDP2 gathers their weights in float8" if _gathers_in_float8(plan) else ""
    return (
        f"products of linear layers run in float8 ({plan.float8}), except of the first and the "
        f"last layer, as accelerate's fp8 by torchao has it{gathered}"
    )


def _make_config(plan: Plan) -> Any:
    """Return torchao's settings of a plan's recipe, with the defaults that accelerate adds."""
    config: Any = importlib.import_module("torchao.float8").Float8LinearConfig
    found = config.from_recipe_name(plan.float8)
    if plan.float8 != _TENSORWISE:
        return found
    gathers = _gathers_in_float8(plan)
    return dataclasses.replace(found, pad_inner_dim=True, enable_fsdp_float8_all_gather=gathers)


def _gathers_in_float8(plan: Plan) -> bool:
    return plan.float8 == _TENSORWISE and layouts.of(plan).name == "fsdp2"
