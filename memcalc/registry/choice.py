"""From an optimizer's name and arguments to a choice, and from a choice to its state in bytes."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.errors import EstimateError, UsageError, unknown
from memcalc.imports import is_named
from memcalc.records.model import OptimizerState, Parameter, Place, StateTensor
from memcalc.records.plan import Plan
from memcalc.records.values import Scalar, scalar
from memcalc.registry import bitsandbytes_rows, extra_rows, own_rows, torch_rows
from memcalc.registry.row import NUMBERS, SWITCHES, Row

_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer with its arguments settled."""

    name: str
    row: Row
    args: Mapping[str, Scalar]
    """Everything that was given, over the row's defaults."""
    given: Mapping[str, Scalar]
    """What the user gave, to build the real one with."""

    @property
    def implementation(self) -> str:
        """Dotted path of the class."""
        return self.row.implementation

    @property
    def traceable(self) -> bool:
        """Its own code runs on the simulated GPU."""
        return self.row.untraceable is None

    @property
    def closed_form(self) -> bool:
        """Its state is known without running it."""
        return self.row.closed_form

    @property
    def rule_bytes_per_parameter(self) -> float | None:
        """Bytes of state per parameter by the rule of thumb."""
        return self.row.rule

    @property
    def kind(self) -> str:
        """How the step runs on CUDA: foreach, fused, for-loop or kernel-per-tensor."""
        if not self.traceable or self.row.package == "memcalc":
            return "kernel-per-tensor"
        if self.args.get("fused"):
            return "fused"
        if self.row.name in ("adafactor", "transformers.adafactor", "muon"):
            return "for-loop"
        return "for-loop" if self.args.get("foreach") is False else "foreach"

    def state(
        self,
        parameters: Sequence[Parameter],
        loop: str = "plain",
        *,
        own_maps: bool = False,
        reloaded: bool = False,
        paged: bool = True,
    ) -> OptimizerState:
        """All state after the first step, in the order it is allocated, each storage once.

        Args:
            parameters: of the model; those that are frozen, and buffers, have no state.
            loop: ``trainer`` keeps embeddings of bitsandbytes' 8-bit optimizers in 32 bit, as
                transformers' Trainer does (trainer.py, 5.23).
            paged: there is managed memory; on the CPU there is none, and states are plain.
            own_maps: every parameter has an optimizer, and so the shared state, of its own.
            reloaded: loaded from a checkpoint. bitsandbytes then copies its code maps for every
                tensor and brings paged state back as plain device memory
                (0.50.2, optim/optimizer.py ``load_state_dict``).

        Raises:
            EstimateError: the optimizer has no closed form.
        """
        layout = self.row.layout
        if layout is None:
            reason = self.row.unknown or "its class is not in the registry"
            raise EstimateError(f"The state of {self.name} is not known: {reason}.")
        sets = loop == "trainer" and self.row.package in ("bitsandbytes", "torchao")
        args = {**self.args, "_trainer": sets}
        trained = [p for p in parameters if p.trainable and not p.buffer and p.numel]
        tensors: list[StateTensor] = []
        for parameter in trained:
            tensors += (
                StateTensor(parameter=parameter.name, name=n, dtype=dtype, numel=size, place=place)
                for n, dtype, size, place in layout(parameter, args)
            )
        copies = reloaded and self.row.package == "bitsandbytes"
        tensors[:0] = self._shared(trained, args, each=own_maps or copies)
        if copies or not paged:
            tensors = [
                replace(t, place=Place.DEVICE) if t.place is Place.MANAGED else t for t in tensors
            ]
        return OptimizerState(
            optimizer=self.name,
            implementation=self.implementation,
            tensors=tuple(tensors),
            notes=tuple(_notes(self, trained, tensors, loop)),
        )

    def _shared(
        self, trained: Sequence[Parameter], args: Mapping[str, Any], *, each: bool
    ) -> list[StateTensor]:
        """State that parameters in 8 bit share; ``each``: every one of them has its own."""
        eight = self.row.in_8bit
        if self.row.shared is None or eight is None:
            return []
        in_8bit = [parameter.name for parameter in trained if eight(parameter, args)]
        return [
            StateTensor(parameter=owner, name=name, dtype=dtype, numel=size, place=place)
            for owner in (in_8bit if each else [""])
            for name, dtype, size, place in self.row.shared(bool(in_8bit), args)
        ]


def _notes(
    choice: Choice, trained: Sequence[Parameter], tensors: Sequence[StateTensor], loop: str
) -> list[str]:
    notes = []
    eight = choice.row.in_8bit
    if eight is not None and choice.args.get("optim_bits") == 8:
        driver = "transformers' Trainer" if loop == "trainer" else "the bare optimizer"
        args = {
            **choice.args,
            "_trainer": loop == "trainer" and choice.row.package == "bitsandbytes",
        }
        wide = [p for p in trained if not eight(p, args)]
        small = [p for p in wide if p.numel < bitsandbytes_rows.MIN_8BIT_SIZE]
        notes.append(
            f"as {driver} runs it: {len(trained) - len(wide)} tensors in 8 bit, {len(wide)} in "
            f"32 bit ({len(small)} of them small)"
        )
    if any(tensor.place is Place.MANAGED for tensor in tensors):
        notes.append("managed memory is outside PyTorch's allocator and can move to the host")
    return notes


def state_of(choice: Choice, parameters: Sequence[Parameter], plan: Plan) -> OptimizerState:
    """The state that a plan's optimizer holds; see ``Choice.state``.

    Raises:
        EstimateError: the optimizer has no closed form.
        UsageError: it has no kernel for what it would have to update.
    """
    if plan.target == "cuda":
        _check_kernels(choice, parameters, plan.loop)
    in_backward = plan.optim_in_backward or choice.row.in_backward
    return choice.state(
        parameters,
        # One optimizer a parameter is not how the Trainer makes them: it sets no overrides then.
        "plain" if in_backward else plan.loop,
        own_maps=in_backward,
        reloaded=plan.resume,
        paged=plan.target == "cuda",
    )


def _check_kernels(choice: Choice, parameters: Sequence[Parameter], loop: str) -> None:
    refuse = choice.row.refuse_on_cuda
    if refuse is None:
        return
    args = {**choice.args, "_trainer": loop == "trainer"}
    for parameter in parameters:
        reason = refuse(parameter, args) if parameter.trainable and not parameter.buffer else None
        if reason:
            raise UsageError(f"{choice.name} cannot run on a GPU: {reason}.")


def rows() -> tuple[Row, ...]:
    """All optimizers, torch's first."""
    return (*torch_rows.ROWS, *bitsandbytes_rows.ROWS, *own_rows.ROWS, *extra_rows.ROWS)


@functools.cache
def _by_name(loop: str) -> dict[str, Row]:
    # Earlier rows win: adafactor and rmsprop are torch's, but for the Trainer.
    names = {_plain(name): row for row in rows() for name in row.under.get(loop, ())}
    for row in rows():
        for name in (row.name, *row.aliases):
            names.setdefault(_plain(name), row)
    return names


@functools.cache
def _by_class() -> dict[tuple[str, str], Row]:
    """Rows by package and class, wherever in its package a class was named."""
    classes: dict[tuple[str, str], Row] = {}
    for row in rows():
        classes.setdefault(_class(row.implementation), row)
    return classes


def _class(name: str) -> tuple[str, str]:
    """Package and class of ``package.module.Class`` or ``package.module:Class``."""
    package, _, rest = name.replace(":", ".").partition(".")
    return package, rest.rpartition(".")[2]


def _plain(name: str) -> str:
    return re.sub(r"[-_ ]", "", name.lower())


def of(plan: Plan) -> Choice:
    """The optimizer of a plan.

    Raises:
        UsageError: an unknown name or argument, or one the optimizer refuses.
    """
    return find(plan.optim, dict(plan.optim_args), plan.loop)


def find(name: str, args: Mapping[str, Scalar], loop: str = "plain") -> Choice:
    """Find an optimizer by name and settle its arguments.

    Args:
        name: as typed: ``adamw``, ``adam8bit``, a value of transformers' ``OptimizerNames``,
            ``memcalc.adamw_bf16``, or any class: ``package.module.Class``,
            ``package.module:Class`` or ``file.py:Class``.
        args: of its constructor.
        loop: under which it runs: the Trainer means other classes by some names.

    Raises:
        UsageError: an unknown name or argument, or one the optimizer refuses.
    """
    row = _by_name(loop).get(_plain(name)) or _by_class().get(_class(name))
    if row is None:
        row = _foreign(name)
    else:
        for key, value in args.items():
            _check(row, name, key, value)
    settled = {**row.defaults, **row.fixed, **args}
    refused = row.refuse(settled) if row.refuse is not None else None
    if refused:
        raise UsageError(f"{name}: {refused}.")
    return Choice(name=name, row=row, args=settled, given=dict(args))


def check_precision(choice: Choice, plan: Plan) -> None:
    """See that the optimizer trains weights of a plan's precision.

    Raises:
        UsageError: it trains those of another one alone.
    """
    wanted = choice.row.precision
    if wanted is not None and plan.precision != wanted:
        raise UsageError(
            f"{choice.name} trains {wanted} weights, not those of {plan.precision}: add "
            f"--precision {wanted}, or name another optimizer."
        )


def _check(row: Row, name: str, key: str, value: Scalar) -> None:
    known = (*row.defaults, *row.takes)
    if key not in known:
        hint = f"{name} takes {', '.join(sorted(set(known)))}."
        raise unknown(f"argument of {name}", key, known, hint=hint)
    default = row.defaults.get(key)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, int) and not isinstance(default, bool) and not number:
        raise UsageError(f"{name}: {key} = {value!r} is not a number.")
    switch = isinstance(default, bool) or (key in SWITCHES and value is not None)
    if switch and not isinstance(value, bool):
        raise UsageError(f"{name}: {key} = {value!r} is not true or false.")
    if key == "optim_bits" and value not in (8, 32):
        raise UsageError(f"{name}: optim_bits is 8 or 32, not {value!r}.")
    if key in NUMBERS and value is not None:
        parts = pair(value) if isinstance(value, str) else (value,) if number else ()
        if not parts or min(parts) < 0 or (key == "betas" and (len(parts) < 2 or max(parts) >= 1)):
            wanted = "two numbers below 1, as 0.9,0.95" if key == "betas" else "a positive number"
            raise UsageError(f"{name}: {key} = {value!r} is not {wanted}.")


def pair(text: str) -> tuple[float, ...]:
    """The numbers of a text such as ``0.9,0.95``; empty: it is another text."""
    numbers = [scalar(part) for part in text.split(",")]
    found = [float(n) for n in numbers if isinstance(n, int | float) and math.isfinite(n)]
    return tuple(found) if len(found) == len(numbers) else ()


def _foreign(name: str) -> Row:
    """A class outside of the registry: its state is what a run of its own code shows."""
    if not is_named(name) and not _DOTTED.fullmatch(name):
        names = [row.name for row in rows()]
        hint = (
            "see memcalc list optimizers, or give a class as package.module.Class or file.py:Class."
        )
        raise unknown("optimizer", name, names, hint=hint)
    return Row(
        name=name,
        implementation=name,
        summary="",
        layout=None,
        package="",
        unknown="its class is not in the registry: only a trace of its own code shows its state",
    )
