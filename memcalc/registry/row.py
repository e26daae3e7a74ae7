"""A registry row of one optimizer, the terms of its closed forms, and a choice of one."""

from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from memcalc.errors import EstimateError
from memcalc.records.model import OptimizerState, Parameter, Place, StateTensor
from memcalc.records.plan import Plan
from memcalc.records.values import Scalar

Args = Mapping[str, Scalar]
Piece = tuple[str, str, int, Place]
"""(name, dtype, elements, place) of one state tensor."""
Layout = Callable[[Parameter, Args], list[Piece]]
Refusal = Callable[[Args], str | None]
"""Returns why an optimizer does not take its arguments, or None."""

NUMBERS = ("lr", "betas", "eps", "weight_decay")
SWITCHES = ("maximize", "foreach", "fused", "differentiable", "capturable")
MIN_8BIT_SIZE = 4096
"""Elements from which bitsandbytes and memcalc keep states in 8 bit."""
COMMON = (*NUMBERS, "maximize")
"""Arguments that change no byte and that nearly every optimizer takes."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer."""

    name: str
    implementation: str
    """Dotted path of the class that is built."""
    summary: str
    layout: Layout | None
    """State of one parameter in order of allocation; ``None``: no closed form."""
    aliases: tuple[str, ...] = ()
    loop_aliases: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Names that mean this one under a loop, where they mean another elsewhere."""
    defaults: Args = msgspec.field(default_factory=dict)
    """Arguments that change state or the shape of the step, with their defaults."""
    takes: tuple[str, ...] = COMMON
    """Further arguments that are accepted and change no byte."""
    shared: Callable[[bool, Args], list[Piece]] | None = None
    """State shared by all tensors; told whether any is in 8 bit."""
    in_8bit: Callable[[Parameter, Args], bool] | None = None
    twin_8bit: str | None = None
    """Name of the optimizer that steps the same with its states in 8 bit; ``None``: none is."""
    rule: float | None = None
    """Bytes of state per parameter by the rule of thumb."""
    package: str = "torch"
    """Empty: a user's own class."""
    extra: str | None = None
    """Further package to install, if any."""
    untraceable: str | None = None
    """Why the optimizer's own code cannot run on the simulated GPU."""
    in_backward: bool = False
    """It updates each parameter inside backward, whatever the loop does."""
    precision: str | None = None
    """The only one that it trains weights of; ``None``: all."""
    refuse: Refusal | None = None
    unknown: str | None = None
    """Why there is no closed form."""

    @property
    def foreign(self) -> bool:
        """True for a class outside of the registry."""
        return not self.package

    @property
    def broken(self) -> bool:
        """True if it refuses even its own defaults."""
        return self.refuse is not None and self.refuse(self.defaults) is not None

    @property
    def closed_form(self) -> bool:
        """True if its state is known without running it."""
        return self.layout is not None


def like(
    parameter: Parameter, *names: str, dtype: str = "", place: Place = Place.DEVICE
) -> list[Piece]:
    """Describe state tensors with these names and the parameter's size, in its dtype or another."""
    return [(name, dtype or parameter.dtype, parameter.numel, place) for name in names]


def number(args: Args, name: str, default: float = 0.0) -> float:
    """Return an optimizer argument as a float, or the default if it is no number."""
    value = args.get(name)
    return float(value) if isinstance(value, int | float) else default


class Choice(msgspec.Struct, frozen=True, kw_only=True):
    """An optimizer with its arguments settled."""

    name: str
    row: Row
    args: Mapping[str, Scalar]
    """Everything that was given, over the row's defaults."""
    given: Mapping[str, Scalar]
    """What the user gave, to build the real one with."""

    @property
    def traceable(self) -> bool:
        """True if its own code runs on the simulated GPU."""
        return self.row.untraceable is None

    @property
    def kind(self) -> str:
        """The way the step runs on CUDA: foreach, fused, for-loop or kernel-per-tensor."""
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
        """Describe the optimizer's state tensors after the first step, by closed form.

        Args:
            parameters: all of the model; frozen ones and buffers have no state.
            loop: ``trainer`` keeps embeddings of bitsandbytes' 8-bit optimizers in 32 bit, as
                transformers' Trainer does (trainer.py, 5.23).
            paged: managed memory exists; without it, as on the CPU, states are plain.
            own_maps: every parameter has its own optimizer, and so its own shared state.
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
        tensors = [
            StateTensor(parameter=parameter.name, name=n, dtype=dtype, numel=size, place=place)
            for parameter in trained
            for n, dtype, size, place in layout(parameter, args)
        ]
        copies = reloaded and self.row.package == "bitsandbytes"
        tensors[:0] = self._shared(trained, args, each=own_maps or copies)
        if copies or not paged:
            tensors = [
                replace(t, place=Place.DEVICE) if t.place is Place.MANAGED else t for t in tensors
            ]
        return OptimizerState(
            optimizer=self.name,
            implementation=self.row.implementation,
            tensors=tuple(tensors),
            notes=tuple(_list_notes(self, trained, tensors, args)),
        )

    def _shared(self, trained: Sequence[Parameter], args: Args, *, each: bool) -> list[StateTensor]:
        """Describe the state shared by parameters in 8 bit; ``each``: one for every parameter."""
        eight = self.row.in_8bit
        if self.row.shared is None or eight is None:
            return []
        in_8bit = [parameter.name for parameter in trained if eight(parameter, args)]
        return [
            StateTensor(parameter=owner, name=name, dtype=dtype, numel=size, place=place)
            for owner in (in_8bit if each else [""])
            for name, dtype, size, place in self.row.shared(bool(in_8bit), args)
        ]


def _list_notes(
    choice: Choice, trained: Sequence[Parameter], tensors: Sequence[StateTensor], args: Args
) -> list[str]:
    notes = []
    eight = choice.row.in_8bit
    if eight is not None and choice.args.get("optim_bits") == 8:
        wide = [p for p in trained if not eight(p, args)]
        small = [p for p in wide if p.numel < MIN_8BIT_SIZE]
        if not wide:
            notes.append(f"8-bit state for all {len(trained)} tensors")
        else:
            notes.append(
                f"8-bit state for {len(trained) - len(wide)} tensors, 32-bit state for {len(wide)} "
                f"({len(small)} of them small)"
            )
    if any(tensor.place is Place.MANAGED for tensor in tensors):
        notes.append("managed memory is outside PyTorch's allocator and can move to the host")
    return notes


def compute_state(choice: Choice, parameters: Sequence[Parameter], plan: Plan) -> OptimizerState:
    """Describe the state tensors of a plan's optimizer, by closed form.

    Raises:
        EstimateError: the optimizer has no closed form.
    """
    in_backward = plan.optim_in_backward or choice.row.in_backward
    return choice.state(
        parameters,
        # One optimizer a parameter is not how the Trainer makes them: it sets no overrides then.
        "plain" if in_backward else plan.loop,
        own_maps=in_backward,
        reloaded=plan.resume,
        paged=plan.target == "cuda",
    )
