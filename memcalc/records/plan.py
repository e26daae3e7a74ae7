"""What is asked: which model to train, and how."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

Scalar = str | int | float | bool | None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What to train and how; everything that changes a byte."""

    model: str
    task: str = "auto"
    optim: str = "adamw"
    optim_args: tuple[tuple[str, Scalar], ...] = ()
    precision: str = "fp32"
    batch: int = 8
    seq: int | None = None
    """Tokens per sample; ``None``: 512, or the model's longest when that is shorter."""
    grad_accum: int = 1
    checkpointing: bool = False
    checkpoint_every: int = 1
    """With checkpointing: recompute every n-th layer, and keep what the others saved."""
    loss_chunks: int = 1
    """Pieces the loss of a causal language model is made in; each piece's logits live alone."""
    attention: str = "auto"
    gpu: str | None = None
    padding: bool | None = None
    """Batches hold padding, so an attention mask is passed; ``None``: yes, but for causal-lm."""
    cudnn_attention: bool = True
    """False where the run disables cuDNN attention (``torch.backends.cuda.enable_cudnn_sdp``)."""
    freeze: tuple[str, ...] = ()
    """Patterns (fnmatch) of parameter names that do not train."""
    lora: str | None = None
    """``r=16,target=all-linear``: train adapters of this rank instead of the model."""
    loop: str = "plain"
    """Who drives: ``plain`` (the bare optimizer) or ``trainer`` (transformers' Trainer)."""
    max_grad_norm: float | None = None
    """Clip gradients to this norm; ``None``: not in a plain loop, 1.0 under the Trainer."""
    set_to_none: bool = True
    optim_in_backward: bool = False
    """Each parameter is updated, and its gradient freed, as soon as backward has completed it."""
    resume: bool = False
    """The run continues a checkpoint: optimizer state is there before the first forward."""
    eval: int | None = None
    """Evaluate over this many batches after the last step, keeping logits on the device."""
    inputs: tuple[str, ...] = ()
    """``name=dtype[shape]`` of each input of a ``package.module:callable`` model."""
    target: str = "cuda"
    torch: str | None = None
    """The version of PyTorch that will run; ``None``: the installed one."""
    alloc_conf: str = ""
    """``PYTORCH_ALLOC_CONF`` of the run."""

    @property
    def program(self) -> Plan:
        """What plans have in common that run the same model and loop on other sizes and GPUs."""
        return replace(self, batch=1, seq=None, gpu=None, alloc_conf="")
