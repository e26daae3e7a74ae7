"""``transformers.TrainingArguments``, and what stands beside them in a script."""

from __future__ import annotations

from memcalc.records.plan import Plan
from memcalc.suggestions.snippets import words
from memcalc.suggestions.snippets.words import Lines


def lines(plan: Plan) -> Lines:
    """Python to be copied into a script."""
    named = words.optimizer(plan)
    arguments = [
        f"per_device_train_batch_size={plan.batch}",
        f"gradient_accumulation_steps={plan.grad_accum}",
        *({"amp-bf16": ["bf16=True"], "amp-fp16": ["fp16=True"]}.get(plan.precision, [])),
        *(["gradient_checkpointing=True"] if plan.checkpointing else []),
        *(["use_liger_kernel=True"] if plan.liger else []),
        *([f'optim="{named}"'] if named else []),
        *_sharded(plan),
    ]
    said = [
        *([f"# torchrun --nproc-per-node {plan.devices} train.py"] if plan.devices > 1 else []),
        "from transformers import TrainingArguments",
        "",
        "args = TrainingArguments(",
        *(f"    {line}," for line in ('output_dir="out"', *arguments)),
        ")",
    ]
    if quantised := words.quantisation(plan):
        said += ["", *quantised]
    if plan.lora is not None:
        said += ["", "from peft import LoraConfig", "", f"peft_config = {words.lora(plan)}"]
    said += words.loading(plan)
    if words.layout(plan) not in ("", "ddp", "fsdp1", "fsdp2"):
        said.append(words.other_layout(plan))
    return [*said, *words.elsewhere(plan, has_optimizer=bool(named))]


def _sharded(plan: Plan) -> Lines:
    layout = words.layout(plan)
    if layout not in ("fsdp1", "fsdp2"):
        return []
    told = {"version": int(layout[-1]), **words.arguments(plan)}
    return ["fsdp=True", f"fsdp_config={told!r}".replace("'", '"')]
