"""Names that other tools give to an option: transformers, torchrun, DeepSpeed, unsloth, vLLM."""

from collections.abc import Collection

_NAMES = {
    "--accelerate-config FILE": "accelerate",
    "--attention NAME": "attn attn-implementation flash flash-attn flash-attention sdpa",
    "--batch N": "b bs micro-batch micro-batch-size train-batch-size per-device-train-batch-size",
    "--checkpointing": "activation-checkpointing grad-checkpoint grad-checkpointing "
    "gradient-checkpointing recompute recomputation use-gradient-checkpointing",
    "--deepspeed FILE": "ds-config deepspeed-config",
    "--devices N": "gpus gpu-count n-gpus ngpus num-devices num-gpus nproc nproc-per-node "
    "num-processes world-size",
    "--find batch": "largest-batch max-batch max-batch-size",
    "--find seq": "largest-seq max-seq",
    "--format csv": "csv",
    "--format markdown": "markdown",
    "--generate N": "max-new-tokens new-tokens",
    "--gpu GPU": "card device gpu-name gpu-type",
    "--grad-accum N": "accumulate-grad-batches accumulation-steps grad-accumulation "
    "gradient-accumulation gradient-accumulation-steps",
    "--lora r=16,target=all-linear": "lora-r lora-rank peft r rank",
    "--optim NAME": "opt optimizer",
    "--parallel NAME": "ddp fsdp fsdp1 fsdp2 hsdp parallelism sharding strategy zero zero-stage "
    "zero1 zero2 zero3",
    "--parallel tp=N (with --engine: --devices N)": "tp tensor-parallel tensor-parallel-size",
    "--precision NAME": "amp amp-bf16 amp-fp16 dtype half mixed-precision tf32 torch-dtype",
    "--quant int8": "8bit int8 load-in-8bit",
    "--quant nf4": "4bit bits fp4 int4 load-in-4bit nf4 quantization quantize",
    "--seq N": "block-size context context-length ctx len length max-len max-length "
    "max-model-len max-seq-len max-seq-length seq-len seq-length seqlen sequence-length",
}
_NO_MATTER = frozenset(
    "betas epochs eps learning-rate lr lr-scheduler lr-scheduler-type max-steps "
    "num-epochs num-train-epochs num-workers seed total-steps warmup warmup-ratio warmup-steps "
    "weight-decay workers".split()
)
_BY_NAME = {theirs: ours for ours, names in _NAMES.items() for theirs in names.split()}


def instead(name: str, options: Collection[str]) -> str | None:
    """What to do in place of an option that another tool calls ``name``, in a few words.

    Returns:
        The option of this verb to type; ``None`` where it has none that is known.
    """
    plain = name.lstrip("-").replace("_", "-").lower()
    if "MODEL" in options and plain in _NO_MATTER:
        return "it changes no memory, so leave it out"
    if plain == "model" and "MODEL" in options:
        return "type MODEL without an option before it"
    ours = _BY_NAME.get(plain)
    return f"type {ours}" if ours is not None and ours.split()[0] in options else None
