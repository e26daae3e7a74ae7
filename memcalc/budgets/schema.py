"""The JSON Schema of budget files, made from what the reader accepts, for editors."""

from __future__ import annotations

from typing import Any

from memcalc.budgets.metrics import COMPONENTS, PER_PARAMETER
from memcalc.budgets.read import DEFAULT_BASELINE, METHODS
from memcalc.catalog.plan import ATTENTIONS, LOOPS, PRECISIONS, TARGETS
from memcalc.records.plan import Plan
from memcalc.records.prediction import RUNGS

_SIZE = r"^\s*\d+(\.\d+)?\s*([kKmMgGtT][iI]?)?[bB]\s*$"
_SHARE = r"^\s*\d+(\.\d+)?\s*(%|([kKmMgGtT][iI]?)?[bB])\s*$"
_CHOICES = {
    "precision": PRECISIONS,
    "attention": ATTENTIONS,
    "loop": LOOPS,
    "target": TARGETS,
}
_WORDS = {
    "model": "A bundled name, a folder or config.json beside this file, a hub name, or "
    "package.module:callable.",
    "task": "The head to train; by default that of the architecture.",
    "optim": "The optimizer; memcalc list optimizers shows them.",
    "optim_args": "Arguments of the optimizer.",
    "precision": "How weights and activations are kept.",
    "batch": "Samples in one micro-batch.",
    "seq": "Tokens per sample.",
    "grad_accum": "Micro-batches for each optimizer step.",
    "checkpointing": "Recompute activations in backward.",
    "checkpoint_every": "With checkpointing: recompute every n-th layer.",
    "loss_chunks": "Make a causal language model's loss in so many pieces.",
    "attention": "The implementation of attention.",
    "gpu": "The GPU that the run is on; memcalc list gpus shows them.",
    "padding": "Batches hold padding, so an attention mask is passed.",
    "cudnn_attention": "cuDNN attention may run where PyTorch prefers it.",
    "freeze": "Patterns of parameter names that do not train.",
    "lora": "Train adapters instead: r=16,target=all-linear.",
    "loop": "plain (the bare optimizer) or trainer (transformers' Trainer).",
    "max_grad_norm": "Clip gradients to this norm.",
    "set_to_none": "zero_grad frees gradients.",
    "inputs": "Inputs of a callable's model, each name=dtype[shape].",
    "target": "Train on cuda or cpu.",
    "torch": "The version of PyTorch that will run.",
    "optim_in_backward": "Update each parameter inside backward and free its gradient at once.",
    "resume": "Continue a checkpoint: optimizer state is there before the first forward.",
    "eval": "Then evaluate over this many batches, keeping their logits.",
    "alloc_conf": "PYTORCH_ALLOC_CONF of the run.",
}


def schema() -> dict[str, Any]:
    """The schema of a memcalc.toml, and of [tool.memcalc] in a pyproject.toml."""
    limits = {"$ref": "#/$defs/limits"}
    method = {"enum": list(METHODS), "description": "Trace the real code, or use closed forms."}
    plan = {**_plan(), "method": method, "limits": limits}
    run = {"type": "object", "additionalProperties": False, "properties": plan}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Memory budgets of memcalc",
        "type": "object",
        "additionalProperties": False,
        "required": ["runs"],
        "properties": {
            "baseline": {
                "type": "string",
                "minLength": 1,
                "default": DEFAULT_BASELINE,
                "description": "The committed figures that max_growth is judged against.",
            },
            "defaults": {**run, "description": "What all runs share; a run's own key wins."},
            "runs": {
                "type": "object",
                "minProperties": 1,
                "additionalProperties": run,
                "description": "Training runs by name.",
            },
        },
        "$defs": {"limits": _limits()},
    }


def _plan() -> dict[str, Any]:
    found = {}
    for name, kind in Plan.__annotations__.items():
        described = {"description": _WORDS[name]} if name in _WORDS else {}
        if name in _CHOICES:
            found[name] = {"enum": list(_CHOICES[name]), **described}
        elif name == "optim_args":
            found[name] = {"type": "object", **described}
        else:
            found[name] = {**_typed(kind), **described}
    return found


def _typed(kind: str) -> dict[str, Any]:
    if kind.startswith("tuple"):
        text = {"type": "string"}
        return {"anyOf": [text, {"type": "array", "items": text}]}
    for start, told in (
        ("bool", {"type": "boolean"}),
        ("int", {"type": "integer", "minimum": 1}),
        ("float", {"type": "number", "exclusiveMinimum": 0}),
    ):
        if kind.startswith(start):
            return told
    return {"type": "string"}


def _limits() -> dict[str, Any]:
    size = {"type": "string", "pattern": _SIZE, "examples": ["4 GiB", "15 GB"]}
    share = {"type": "string", "pattern": _SHARE, "examples": ["2%", "50 MiB"]}
    number = {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e9}
    parts = {name: _words(name) for name in COMPONENTS}
    sized = {name: {**size, "description": text} for name, text in parts.items()}
    growing = {
        "peak": _whole_or_parts(share, RUNGS, share),
        **dict.fromkeys(COMPONENTS, share),
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "peak": {
                **_whole_or_parts(size, RUNGS, size),
                "description": "The peak; without a rung, allocated.",
            },
            **sized,
            PER_PARAMETER: {
                **_whole_or_parts(number, COMPONENTS, number),
                "description": "Requested bytes at the peak for each parameter of the model.",
            },
            "fits": {"type": "string", "description": "A GPU that the run must fit."},
            "margin": {
                **share,
                "description": "To be kept free below fits and limits of the peak.",
            },
            "max_growth": {
                "anyOf": [share, _table(growing)],
                "description": "At most so much more than the baseline; of the allocated peak, "
                "or of the figures named.",
            },
        },
    }


def _words(component: str) -> str:
    return f"Bytes of {component.replace('_', ' ')} at the peak."


def _whole_or_parts(
    whole: dict[str, Any], names: tuple[str, ...], part: dict[str, Any]
) -> dict[str, Any]:
    return {"anyOf": [whole, _table(dict.fromkeys(names, part))]}


def _table(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "minProperties": 1,
        "properties": properties,
    }
