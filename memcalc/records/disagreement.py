"""Settings of a plan that cannot be combined, and which to leave out."""

from memcalc.records.compact_options import NO_LORA
from memcalc.records.names import FLASH_ATTN
from memcalc.records.plan import Plan

_ARGS_ALONE = "engine_args needs engine: name vllm or sglang."


def disagreement(plan: Plan) -> str | None:
    """Why PyTorch itself cannot run these settings together; ``None``: it can."""
    if plan.inputs and (plan.seq is not None or plan.padding is not None):
        name = "seq" if plan.seq is not None else "padding"
        return f"{name} is for batches that memcalc makes, and input describes them: leave one out."
    if plan.infers:
        return _without_training(plan)
    if plan.engine is not None:
        return f"--engine {plan.engine} only serves: add --generate 256."
    if plan.engine_args:
        return _ARGS_ALONE
    if plan.scheme is not None and plan.lora == NO_LORA:
        return f"on a base in {plan.scheme} only adapters train: leave out lora none, or quant."
    if plan.cache != "dynamic" or plan.beams > 1:
        name = "cache" if plan.cache != "dynamic" else "beams"
        return f"{name} needs --generate: say how many tokens, such as --generate 256."
    if plan.scheme is None and plan.kbit_prepare is False:
        return "kbit_prepare needs a quantized base: add quant, or leave it out."
    if plan.checkpoint_every > 1 and not plan.checkpointing:
        return "checkpoint_every needs checkpointing: add --checkpointing."
    if plan.liger and plan.loss_chunks > 1:
        return "liger makes the loss in pieces of its own: leave out loss_chunks, or liger."
    if plan.liger and plan.target == "cpu":
        return "Liger's kernels are for GPUs: leave out liger, or target cpu."
    if plan.compile and plan.target == "cpu":
        return "compile is answered for GPUs: leave out compile, or target cpu."
    if plan.attention == FLASH_ATTN and plan.target == "cpu":
        return "flash-attn's kernels are for GPUs: leave out attention, or target cpu."
    if (wrong := _about_devices(plan)) is not None:
        return wrong
    against = {
        "grad_accum above 1": plan.grad_accum > 1,
        "max_grad_norm": plan.max_grad_norm is not None,
        "precision amp-fp16": plan.precision == "amp-fp16",
    }
    named = next((name for name, given in against.items() if given), None)
    if named is None or not plan.optim_in_backward:
        return None
    return (
        f"optim_in_backward does not go with {named}: gradients are used and freed one by "
        "one, before all of them are known."
    )


def _without_training(plan: Plan) -> str | None:
    """What of a plan that infers is about training, or about another kind of inference."""
    asked = "generate" if plan.generate is not None else "inference"
    if plan.inference and plan.generate is not None:
        return "generate is inference already: leave inference out."
    if plan.inference and (plan.cache != "dynamic" or plan.beams > 1):
        return "inference is one forward pass without a cache: type --generate N for one."
    training = {
        "grad_accum": plan.grad_accum > 1,
        "checkpointing": plan.checkpointing,
        "loss_chunks": plan.loss_chunks > 1,
        "liger": plan.liger,
        "max_grad_norm": plan.max_grad_norm is not None,
        "optim_in_backward": plan.optim_in_backward,
        "resume": plan.resume,
        "eval": plan.eval is not None,
        "freeze": bool(plan.freeze),
        "kbit_prepare": not plan.kbit_prepare,
        "keep_outputs": plan.keep_outputs is not None,
        "kv_cache": plan.kv_cache is not None,
        "optim_args": bool(plan.optim_args),
        f"loop {plan.loop}": plan.loop != "plain",
    }
    named = next((name for name, given in training.items() if given), None)
    if named is not None:
        return f"{asked} trains nothing: leave out {named}, or {asked}."
    if plan.compile:
        return f"compile is answered for training so far: leave out compile, or {asked}."
    if plan.parallel is not None or (plan.devices > 1 and plan.engine != "vllm"):
        return f"{asked} works on one GPU only: leave out devices and parallel."
    if plan.generate is not None and plan.inputs:
        return "generate makes its prompts itself: leave out input."
    return _about_engines(plan) or _about_devices(plan)


def _about_engines(plan: Plan) -> str | None:
    if plan.engine is None:
        return _ARGS_ALONE if plan.engine_args else None
    if plan.gpu is None:
        return "an engine reserves a share of a GPU: name it, such as --gpu a100-80gb."
    if "amp" in plan.precision:
        half = "fp16" if "fp16" in plan.precision else "bf16"
        return f"engines have no {plan.precision}: type --precision {half}."
    if plan.scheme is not None:
        return "engines with quantized weights are not supported yet: leave quant out."
    if plan.cache != "dynamic" or plan.beams > 1:
        return "engine keeps a cache of its own, and no beams: leave out cache and beams."
    return None


def _about_devices(plan: Plan) -> str | None:
    if plan.gpu is not None and plan.target == "cpu":
        return f"target cpu runs on no GPU: leave out gpu {plan.gpu}, or target cpu."
    return None
