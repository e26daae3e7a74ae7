"""A config of axolotl."""

from __future__ import annotations

from memcalc.advice.suggest.snippets import text
from memcalc.advice.suggest.snippets.text import Lines
from memcalc.records.compact_options import adapter
from memcalc.records.names import ZERO_STAGES
from memcalc.records.plan import Plan

_FLAGS = {"amp-bf16": ["bf16: true"], "amp-fp16": ["fp16: true"], "bf16": ["bf16: full"]}
_FLAGS["bf16+amp"] = _FLAGS["amp-bf16"]
_LOADED = {
    "nf4": ["load_in_4bit: true"],
    "nf4-dq": ["load_in_4bit: true"],
    "int8": ["load_in_8bit: true"],
}
LIGER = [
    "plugins:",
    "  - axolotl.integrations.liger.LigerPlugin",
    *(
        f"liger_{name}: true"
        for name in ("rope", "rms_norm", "glu_activation", "fused_linear_cross_entropy")
    ),
]
"""What Liger replaces by default, by the names of axolotl's plugin (its docs)."""


def lines(plan: Plan) -> Lines:
    """YAML, with comments on what it has no word for."""
    named = text.optimizer(plan)
    layout = text.layout(plan)
    return [
        f"base_model: {plan.model}",
        *([f"sequence_len: {plan.seq}"] if plan.seq else []),
        f"micro_batch_size: {plan.batch}",
        f"gradient_accumulation_steps: {plan.grad_accum}",
        *_FLAGS.get(plan.precision, []),
        *([f"optimizer: {named}"] if named else []),
        *(["gradient_checkpointing: true"] if plan.checkpointing else []),
        *(LIGER if plan.liger else []),
        *_adapted(plan),
        *_sharded(plan, layout),
        *([f"# axolotl train this.yaml, over {plan.devices} GPUs"] if layout else []),
        *([f"# quantized: {plan.scheme}"] if plan.scheme and plan.scheme not in _LOADED else []),
        *([text.other_layout(plan)] if layout not in ("", "ddp", "fsdp2", *ZERO_STAGES) else []),
        *text.elsewhere(plan, has_optimizer=bool(named)),
    ]


def _adapted(plan: Plan) -> Lines:
    if plan.lora is None:
        return []
    lora = adapter(plan.lora)
    targets = (
        ["lora_target_linear: true"]
        if lora.target == "all-linear"
        else ["lora_target_modules:", *(f"  - {name}" for name in lora.target)]
    )
    loaded = _LOADED.get(plan.scheme or "", [])
    return [
        f"adapter: {'qlora' if 'load_in_4bit: true' in loaded else 'lora'}",
        *loaded,
        f"lora_r: {lora.r}",
        f"lora_alpha: {lora.alpha:g}",
        *targets,
    ]


def _sharded(plan: Plan, layout: str) -> Lines:
    if layout in ZERO_STAGES:
        return [f"deepspeed: deepspeed_configs/zero{ZERO_STAGES[layout]}.json"]
    if layout != "fsdp2":
        return []
    told = {
        "auto_wrap_policy": "TRANSFORMER_BASED_WRAP",
        **{name: str(value).lower() for name, value in plan.parallel_args},
    }
    return [
        "fsdp_version: 2",
        "fsdp_config:",
        *(f"  {name}: {value}" for name, value in told.items()),
    ]
