"""A language model's loss in pieces: logits of one piece at a time, made again in backward.

The logits of a batch are tokens times vocabulary, and the loss keeps several copies of them. Here
the output head and the loss run piece by piece under ``torch.utils.checkpoint``, so that only one
piece's logits are alive. Same loss and gradients, up to rounding; the head's product runs twice.

Shapes: B batch, S tokens, H hidden, N = B S rows, V vocabulary.
"""

import functools
import types
from typing import Any

import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from memcalc.errors import UsageError
from memcalc.workload.meta_run import OperatorLog, forward_on_meta

IGNORED = -100
"""Label of rows that the loss ignores (``transformers/loss/loss_utils.py``)."""
_CHANGE_NOTHING = {"_to_copy", "detach", "alias", "view", "_unsafe_view"}
"""Operators after the head that leave the logits what they are, but for their type."""


def chunk_loss(model: torch.nn.Module, chunks: int) -> None:
    """Replace a causal language model's forward by one that computes its loss in chunks.

    Raises:
        UsageError: not a causal language model, or one that does more to its logits than the
            output head.
    """
    name = type(model).__name__
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if not name.endswith(("ForCausalLM", "LMHeadModel")) or not isinstance(head, torch.nn.Linear):
        raise UsageError(f"{name} is no causal language model: leave --loss-chunks out.")
    try:
        plain = _returns_logits_of_head(model, head)
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        raise UsageError(
            f"{name} does not run without data ({said}): leave --loss-chunks out."
        ) from None
    if not plain:
        raise UsageError(f"{name} does more to its logits than its head: leave --loss-chunks out.")

    whole = type(model).forward

    @functools.wraps(whole)
    def forward(self: Any, *args: Any, labels: torch.Tensor, **kwargs: Any) -> Any:
        if not self.training:
            # Whoever evaluates reads the logits.
            return whole(self, *args, labels=labels, **kwargs)
        hidden = self.base_model(*args, **kwargs).last_hidden_state
        return {"loss": _chunked_loss(self.get_output_embeddings(), hidden, labels, chunks)}

    # A method, so that a copy of the model runs its own layers.
    model.forward = types.MethodType(forward, model)


def _chunked_loss(
    head: torch.nn.Module, hidden: torch.Tensor, labels: torch.Tensor, chunks: int
) -> torch.Tensor:
    """Compute the next-token cross-entropy in chunks; hidden (B, S, H), labels (B, S)."""
    targets = functional.pad(labels, (0, 1), value=IGNORED)[..., 1:].reshape(-1)
    rows = hidden.reshape(-1, hidden.shape[-1])
    # Hidden states are a DTensor where tokens are divided over GPUs; what the head returns is none.
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    for piece, wanted in zip(rows.chunk(chunks), targets.chunk(chunks), strict=True):
        total = total + checkpoint(_chunk_loss_sum, head, piece, wanted, use_reentrant=False)
    return total / (targets != IGNORED).sum()


def _chunk_loss_sum(
    head: torch.nn.Module, rows: torch.Tensor, targets: torch.Tensor
) -> torch.Tensor:
    logits = head(rows).float()
    return functional.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


def _returns_logits_of_head(model: torch.nn.Module, head: torch.nn.Module) -> bool:
    """Return True if a trial on meta shows that logits are the plain output head's product.

    The model runs on the meta device in bfloat16: operators for experts take no other dtype there.
    """
    log = OperatorLog()
    given: list[torch.Tensor] = []
    hidden: list[torch.Tensor] = []
    base: Any = model.base_model

    def after_base(_: object, args: object, out: Any) -> None:
        hidden.append(out if isinstance(out, torch.Tensor) else out[0])

    # Some call a part of their base model only.
    hooks = [
        head.register_forward_pre_hook(lambda _, args: given.append(args[0])),
        head.register_forward_hook(lambda *_: log.ran.clear()),
        *(m.register_forward_hook(after_base) for m in (base, *base.children())),
    ]
    tokens = torch.zeros(1, 2, dtype=torch.long, device="meta")
    try:
        with log:
            forward_on_meta(model, {"input_ids": tokens}, torch.bfloat16)
    finally:
        for hook in hooks:
            hook.remove()
    whole = [_find_base(tensor) for tensor in given]
    from_hidden = len(whole) == 1 and any(whole[0] is _find_base(states) for states in hidden)
    return from_hidden and _CHANGE_NOTHING.issuperset(name for name, _ in log.ran)


def _find_base(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor that this one is a view of, or itself."""
    return tensor if tensor._base is None else tensor._base
