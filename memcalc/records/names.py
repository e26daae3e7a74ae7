"""Names that DeepSpeed, accelerate and transformers give to what a plan may ask for."""

ZERO_STAGES = {"deepspeed_zero1": 1, "zero2": 2, "zero3": 3}
"""DeepSpeed's stages by the layouts they are; ``zero1`` is PyTorch's own."""
PLAIN_TENSORS = ("ddp", "zero1", "fsdp1")
"""Layouts of PyTorch that hand an optimizer plain tensors, which any kernel takes; no DTensors."""
SHARDED = ("fsdp1", "fsdp2", "hsdp")
"""Layouts that divide the weights of a base in 4 bit; others leave it whole, or cannot take it."""
STRATEGIES = ("FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2")
"""How FSDP's first version shards, by accelerate's names and in its order."""
PREFETCHES = ("BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH")
"""When FSDP's first version gathers the next unit in backward, by accelerate's names."""
WRAPS = ("TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP")
"""What accelerate calls the ways to choose FSDP's units, the layers of the model first."""
TRAINER_OPTIM = "adamw_torch_fused"
"""``TrainingArguments.optim`` by default since PyTorch 2.8 (transformers 5.23)."""
WITH_ACCELERATE = ("ddp", "deepspeed_zero1", "fsdp1", "fsdp2", "zero2", "zero3")
"""Layouts that accelerate and the Trainer wrap a model by."""
FLASH_ATTN = "flash_attention_2"
"""What transformers calls attention by the package flash-attn, of version 2."""
AUTOCAST_DTYPES = {"amp-bf16": "bfloat16", "bf16+amp": "bfloat16", "amp-fp16": "float16"}
"""Dtype of autocast by the precisions that have one."""
WEIGHT_DTYPES = {"bf16": "bfloat16", "bf16+amp": "bfloat16", "fp16": "float16"}
"""Dtype of weights by the precisions that keep them in 16 bits."""
DTYPES = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
"""PyTorch's names of dtypes by the short ones."""
