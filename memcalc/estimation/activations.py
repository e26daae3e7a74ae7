"""Activations of transformer blocks by closed form.

Source: Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models"
(arXiv 2205.05198), equations 1 and 2: a block with 16-bit activations and dropout keeps
``sbh (34 + 5 as/h)`` bytes for backward. Here the same terms, counted by tensor, so that other
widths, gated MLPs, grouped heads and kernels that never store the s x s scores are covered.

Legend: b batch, s tokens, h hidden, f width of the MLP, a heads, g key-value heads, d head size,
L layers, V vocabulary.
"""

from collections.abc import Mapping
from typing import Any

import msgspec

from memcalc.estimation.question import ResolvedPlan
from memcalc.records.model import Inventory

_FLOAT = 4
_GATED = (
    "llama mistral qwen2 qwen3 gemma gemma2 gemma3_text phi3 olmo olmo2 granite cohere smollm3 "
    "modernbert"
).split()
"""Model types whose MLP multiplies a gate with a value."""
_UNGATED = (
    "bert distilbert roberta xlm-roberta electra albert camembert gpt2 gpt_neox gpt_neo gptj opt "
    "bloom falcon phi starcoder2"
).split()
_UNFUSED = ("gelu_new", "gelu_fast")
"""Activations that transformers writes out in single operations (``activations.py``, 5.23)."""
_SOURCE = "activations by the closed form of Korthikanti et al. 2022, adapted"
_NO_FORM = "no published closed form for the activations of this architecture"
_NO_FORM_ADAPTERS = "no published closed form for the activations beside LoRA adapters"


class Blocks(msgspec.Struct, frozen=True, kw_only=True):
    """The sizes of a plain stack of transformer blocks."""

    layers: int
    hidden: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    dropout: bool
    gated: bool
    unfused: bool
    """True if the MLP's activation runs as single operations, each of which saves its inputs."""
    cached: bool
    """True for a causal model that returns keys and values by default."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """The settings under which the blocks run."""

    batch: int
    seq: int
    element: int
    """Bytes of the activations that matrix products read."""
    stored_scores: bool
    """True if the s x s attention scores are kept (eager attention)."""
    checkpointing: bool
    logits: bool
    """True if a language-model head and its loss run over every token."""


class ActivationBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a run over one micro-batch keeps; all 0 if ``unknown`` gives a reason."""

    seq: int | None
    activations: int = 0
    """Saved for backward when forward ends."""
    loss_gradient: int = 0
    outputs: int = 0
    """Returned by the model; a loop may keep them until the next forward has ended."""
    unknown: str = ""
    assumptions: tuple[str, ...]
    """Sentences on how they are known."""


def estimate(question: ResolvedPlan, inventory: Inventory) -> ActivationBytes:
    """Return the bytes that a run over one micro-batch keeps, by closed form."""
    plan = question.plan
    blocks = read_blocks(question.source.config or {})
    if plan.adapters is not None or blocks is None:
        why = _NO_FORM if plan.adapters is None else _NO_FORM_ADAPTERS
        left_out = f"activations are left out of every figure: {why}"
        return ActivationBytes(seq=plan.seq, unknown=why, assumptions=(left_out,))
    seq = plan.seq if plan.seq is not None else question.lengths.default
    setting = Setting(
        batch=plan.batch,
        seq=seq,
        element=2 if "16" in plan.precision else 4,
        stored_scores=plan.attention in ("eager", "math"),
        checkpointing=plan.checkpointing,
        logits=question.head.task.vocabulary,
    )
    # Autocast's 16-bit copies of the weights and biases that matrix products read: leaves that
    # train are cast once and kept, and backward reads the same copies (aten/src/ATen/
    # autocast_mode.cpp, ``cached_cast``, 2.13).
    read = [p for p in inventory.trainable if p.module in ("Linear", "Conv1D")]
    copies = sum(2 * p.numel for p in read) if plan.precision.startswith("amp") else 0
    return ActivationBytes(
        seq=seq,
        activations=activation_bytes(blocks, setting) + copies,
        loss_gradient=loss_gradient(blocks, setting),
        outputs=outputs(blocks, setting),
        assumptions=(f"{plan.batch} x {seq} tokens", _SOURCE),
    )


def read_blocks(config: Mapping[str, Any]) -> Blocks | None:
    """Read the sizes of a model's transformer blocks from its config, or return None."""
    model_type = config.get("model_type")
    if model_type not in _GATED and model_type not in _UNGATED:
        return None
    hidden = _first_int(config, "hidden_size", "n_embd", "dim", "d_model")
    layers = _first_int(config, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
    heads = _first_int(config, "num_attention_heads", "n_head", "n_heads", "num_heads")
    if not (hidden and layers and heads):
        return None
    return Blocks(
        layers=layers,
        hidden=hidden,
        mlp=_first_int(config, "intermediate_size", "n_inner", "ffn_dim", "hidden_dim")
        or 4 * hidden,
        heads=heads,
        kv_heads=_first_int(config, "num_key_value_heads") or heads,
        head_dim=_first_int(config, "head_dim") or hidden // heads,
        vocabulary=_first_int(config, "vocab_size") or 0,
        dropout=any(
            config.get(key)
            for key in ("hidden_dropout_prob", "dropout", "resid_pdrop", "hidden_dropout")
        ),
        gated=model_type in _GATED,
        unfused=any(
            config.get(key) in _UNFUSED
            for key in ("hidden_act", "activation_function", "hidden_activation", "activation")
        ),
        cached=config.get("use_cache") is not False,
    )


def _first_int(config: Mapping[str, Any], *keys: str) -> int | None:
    for key in keys:
        value = config.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return None


def activation_bytes(blocks: Blocks, setting: Setting) -> int:
    """Return the bytes that forward saves for backward, with logits and loss."""
    if setting.checkpointing:
        inside = _layer_bytes(blocks, setting)
        tokens = setting.batch * setting.seq
        # Only the inputs of the layers stay; one layer at a time is recomputed in backward.
        stack = blocks.layers * tokens * blocks.hidden * setting.element + inside
    else:
        stack = blocks.layers * _layer_bytes(blocks, setting)
    return stack + (head(blocks, setting) if setting.logits else 0)


def _layer_bytes(blocks: Blocks, setting: Setting) -> int:
    tokens, element = setting.batch * setting.seq, setting.element
    query, key = blocks.heads * blocks.head_dim, blocks.kv_heads * blocks.head_dim
    attention = tokens * element * (blocks.hidden + 2 * query + 2 * key)
    rows = setting.batch * blocks.heads * setting.seq
    if setting.stored_scores:
        # Softmax output, and with dropout its mask and output.
        scores = rows * setting.seq * (2 * element + 1 if blocks.dropout else element)
    else:
        scores = rows * _FLOAT + tokens * query * element
    # What the activation reads and what it gives; a gated one also the value and the product.
    # Written out, gelu_new keeps x, x/2, tanh and 1 + tanh where the fused one keeps x.
    wide = (4 if blocks.gated else 2) + (3 if blocks.unfused else 0)
    mlp = tokens * element * (blocks.hidden + wide * blocks.mlp)
    norms = 2 * tokens * blocks.hidden * max(element, 2)
    masks = 2 * tokens * blocks.hidden if blocks.dropout else 0
    return attention + scores + mlp + norms + masks


def head(blocks: Blocks, setting: Setting) -> int:
    """Return the bytes of logits, their fp32 copy for 16-bit models, and the log-softmax."""
    copy = 1 if setting.element < _FLOAT else 0
    return logits(blocks, setting) + (1 + copy) * _fp32_logits_bytes(blocks, setting)


def logits(blocks: Blocks, setting: Setting) -> int:
    """Return the bytes of the logits, in the model's dtype."""
    return setting.batch * setting.seq * blocks.vocabulary * setting.element


def loss_gradient(blocks: Blocks, setting: Setting) -> int:
    """Return the bytes of backward's first gradient: of the logits, in fp32."""
    return _fp32_logits_bytes(blocks, setting) if setting.logits else 0


def outputs(blocks: Blocks, setting: Setting) -> int:
    """Return the bytes of a language model's outputs: logits, and keys and values if cached."""
    if not setting.logits:
        return 0
    cached = blocks.cached and not setting.checkpointing
    keys = 2 * blocks.layers * blocks.kv_heads * blocks.head_dim if cached else 0
    return logits(blocks, setting) + setting.batch * setting.seq * keys * setting.element


def _fp32_logits_bytes(blocks: Blocks, setting: Setting) -> int:
    return setting.batch * setting.seq * blocks.vocabulary * _FLOAT
