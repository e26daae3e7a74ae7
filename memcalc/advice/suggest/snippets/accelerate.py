"""The YAML of ``accelerate launch --config_file``."""

from __future__ import annotations

from memcalc.advice.suggest.snippets import text
from memcalc.advice.suggest.snippets.text import Lines
from memcalc.records.names import ZERO_STAGES
from memcalc.records.plan import Plan

_TYPES = {"": "'NO'", "ddp": "MULTI_GPU", "fsdp1": "FSDP", "fsdp2": "FSDP"}


def lines(plan: Plan) -> Lines:
    """A whole file; what belongs into the script is a comment."""
    mixed = text.half(plan) if "amp" in plan.precision else "no"
    layout = text.layout(plan)
    kind = "DEEPSPEED" if layout in ZERO_STAGES else _TYPES.get(layout, "MULTI_GPU")
    return [
        "# accelerate launch --config_file this.yaml train.py",
        "compute_environment: LOCAL_MACHINE",
        f"distributed_type: {kind}",
        *_sharded(plan, layout),
        f"mixed_precision: '{mixed}'",
        "num_machines: 1",
        f"num_processes: {plan.devices}",
        "use_cpu: false",
        f"# Accelerator(gradient_accumulation_steps={plan.grad_accum})",
        f"# DataLoader(..., batch_size={plan.batch})",
        *(["# model.gradient_checkpointing_enable()"] if plan.checkpointing else []),
        *(["# transformers.integrations.liger.apply_liger_kernel(model, None)"] * plan.liger),
        *([f"# model = torch.compile(model, mode={plan.compile!r})"] if plan.compile else []),
        *(f"# {line}" for line in text.quantisation(plan) if line),
        *([f"# {text.lora(plan)}"] if plan.lora is not None else []),
        *text.loading(plan),
        *([text.other_layout(plan)] if layout not in (*_TYPES, *ZERO_STAGES) else []),
        *text.elsewhere(plan, has_optimizer=False),
    ]


def _sharded(plan: Plan, layout: str) -> Lines:
    if layout in ZERO_STAGES:
        steps = plan.grad_accum
        return [
            "deepspeed_config:",
            f"  zero_stage: {ZERO_STAGES[layout]}",
            f"  gradient_accumulation_steps: {steps}",
        ]
    if not layout.startswith("fsdp"):
        return []
    told = {
        "fsdp_version": layout[-1],
        "fsdp_auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **{f"fsdp_{name}": str(value).lower() for name, value in plan.parallel_args},
    }
    return ["fsdp_config:", *(f"  {name}: {value}" for name, value in told.items())]
