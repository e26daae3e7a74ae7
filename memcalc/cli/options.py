"""The options that describe a plan, the same for every verb that takes one."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from memcalc.catalog import plan as plans
from memcalc.cli.command import FILE, Argument, Command, verb
from memcalc.records.plan import Plan

MODEL = Argument(
    ["model"],
    required=False,
    explained="A bundled name, a local folder or config.json, a hub name, "
    "or package.module:callable returning an nn.Module.",
)
_TYPES = {str | None: str, int | None: int, float | None: float, bool | None: bool}


def _option(kind: Any, help_text: str, *names: str) -> Callable[[str], click.Option]:
    """Options keep ``None``, or no entries, where nothing was typed."""

    def named(field: str) -> click.Option:
        typed = names or (f"--{field.replace('_', '-')}",)
        repeatable = kind == list[str] | None
        shape = str if repeatable else FILE if kind == Path | None else _TYPES[kind]
        return click.Option(
            [field, *typed], type=shape, multiple=repeatable, default=None, help=help_text
        )

    return named


OPTIONS: dict[str, Callable[[str], click.Option]] = {
    "plan_file": _option(Path | None, "TOML file with these settings.", "--plan"),
    "task": _option(str | None, "Head to train; default: by architecture."),
    "optim": _option(str | None, "Optimizer, a comma list, or all. Default: adamw."),
    "optim_arg": _option(list[str] | None, "Argument of the optimizer, key=value; repeatable."),
    "precision": _option(str | None, f"{', '.join(plans.PRECISIONS)}. Default: fp32."),
    "batch": _option(int | None, "Samples in one micro-batch. Default: 8."),
    "seq": _option(int | None, "Tokens per sample. Default: 512, or the model's longest."),
    "grad_accum": _option(int | None, "Micro-batches per optimizer step. Default: 1."),
    "checkpointing": _option(
        bool | None, "Recompute activations in backward.", "--checkpointing/--no-checkpointing"
    ),
    "checkpoint_every": _option(
        int | None, "With --checkpointing: recompute every n-th layer. Default: 1."
    ),
    "loss_chunks": _option(
        int | None, "Make a causal language model's loss in so many pieces. Default: 1."
    ),
    "attention": _option(str | None, f"{', '.join(plans.ATTENTIONS)}. Default: auto."),
    "cudnn_attention": _option(
        bool | None,
        "Let cuDNN attention run where PyTorch prefers it.",
        "--cudnn-attention/--no-cudnn-attention",
    ),
    "padding": _option(
        bool | None, "Batches hold padding (an attention mask is passed).", "--padding/--no-padding"
    ),
    "gpu": _option(str | None, "GPU to fit; see memcalc list gpus."),
    "freeze": _option(
        list[str] | None, "Pattern of parameter names that do not train; repeatable."
    ),
    "lora": _option(str | None, "Train adapters instead: r=16,target=all-linear."),
    "loop": _option(
        str | None, "plain (the bare optimizer) or trainer (transformers' Trainer). Default: plain."
    ),
    "max_grad_norm": _option(float | None, "Clip gradients to this norm."),
    "set_to_none": _option(
        bool | None, "zero_grad frees gradients.", "--set-to-none/--no-set-to-none"
    ),
    "optim_in_backward": _option(
        bool | None,
        "Update each parameter inside backward and free its gradient at once.",
        "--optim-in-backward/--no-optim-in-backward",
    ),
    "resume": _option(
        bool | None,
        "Continue a checkpoint: optimizer state is there before the first forward.",
        "--resume/--no-resume",
    ),
    "eval": _option(int | None, "Then evaluate over this many batches, keeping their logits."),
    "input": _option(
        list[str] | None, "Input of a callable's model, name=dtype[shape]; repeatable."
    ),
    "target": _option(str | None, "cuda or cpu. Default: cuda."),
    "torch": _option(str | None, "PyTorch version that will run. Default: the installed one."),
    "alloc_conf": _option(str | None, "PYTORCH_ALLOC_CONF of the run."),
}
_RENAMED = {"optim_arg": "optim_args", "input": "inputs"}


def settings_of(model: str | None, given: dict[str, Any]) -> dict[str, Any]:
    """Join the plan file and the command line; the command line wins."""
    path = given.pop("plan_file")
    settings: dict[str, Any] = plans.read(path) if path is not None else {}
    given["optim_arg"] = plans.parse_args(given["optim_arg"])
    typed = {
        _RENAMED.get(key, key): value for key, value in given.items() if value not in (None, ())
    }
    if model is not None:
        typed["model"] = model
    return {**settings, **typed}


def plans_of(settings: dict[str, Any]) -> list[Plan]:
    """One plan for each optimizer asked for."""
    wanted = settings.get("optim")
    names = wanted if isinstance(wanted, list) else str(wanted or "adamw").split(",")
    if names == ["all"]:
        from memcalc import registry

        usable = [row for row in registry.rows() if row.closed_form and not row.broken]
        names = [row.name for row in usable]
    return [plans.make({**settings, "optim": name.strip()}) for name in names]


def with_plan(command: Callable[..., None]) -> Command:
    """Make a verb that takes a plan; its function gets ``settings`` in place of the options."""
    shared = [MODEL, *(make(field) for field, make in OPTIONS.items())]
    names = {one.name for one in shared}

    @functools.wraps(command)
    def run(*, model: str | None, **typed: Any) -> None:
        given = {name: typed.pop(name) for name in list(typed) if name in names}
        command(settings=settings_of(model, given), **typed)

    return verb(run, shared)
