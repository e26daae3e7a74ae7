"""``transformers.TrainingArguments`` and the code beside them."""

from __future__ import annotations

from memcalc.advice.suggest.snippets import text
from memcalc.advice.suggest.snippets.text import Lines
from memcalc.records.plan import Plan


def lines(plan: Plan) -> Lines:
    """Python to be copied into a script."""
    named = text.optimizer(plan)
    arguments = [
        f"per_device_train_batch_size={plan.batch}",
        f"gradient_accumulation_steps={plan.grad_accum}",
        *([f"{text.half(plan)}=True"] if "amp" in plan.precision else []),
        *(["gradient_checkpointing=True"] if plan.checkpointing else []),
        *(["use_liger_kernel=True"] if plan.liger else []),
        *([f'torch_compile=True, torch_compile_mode="{plan.compile}"'] if plan.compile else []),
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
    if quantised := text.quantisation(plan):
        said += ["", *quantised]
    if plan.lora is not None:
        said += ["", "from peft import LoraConfig", "", f"peft_config = {text.lora(plan)}"]
    said += text.loading(plan)
    if text.layout(plan) not in ("", "ddp", "fsdp1", "fsdp2"):
        said.append(text.other_layout(plan))
    return [*said, *text.elsewhere(plan, has_optimizer=bool(named))]


def _sharded(plan: Plan) -> Lines:
    layout = text.layout(plan)
    if layout not in ("fsdp1", "fsdp2"):
        return []
    told = {"version": int(layout[-1]), **text.arguments(plan)}
    return ["fsdp=True", f"fsdp_config={told!r}".replace("'", '"')]
