"""A registry row of one optimizer, and the terms of its closed forms."""

from collections.abc import Callable, Mapping

import msgspec

from memcalc.records.model import Parameter, Place
from memcalc.records.values import Scalar

Args = Mapping[str, Scalar]
Piece = tuple[str, str, int, Place]
"""(name, dtype, elements, place) of one state tensor."""
Layout = Callable[[Parameter, Args], list[Piece]]
Refusal = Callable[[Args], str | None]
OnCuda = Callable[[Parameter, Args], str | None]
"""Why one parameter's update cannot run on a GPU; ``None`` where it can."""

NUMBERS = ("lr", "betas", "eps", "weight_decay")
SWITCHES = ("maximize", "foreach", "fused", "differentiable", "capturable")
COMMON = (*NUMBERS, "maximize")
"""Arguments that change no byte and that nearly every optimizer takes."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One optimizer."""

    name: str
    implementation: str
    """Dotted path of the class that is built."""
    summary: str
    layout: Layout | None
    """State of one parameter in order of allocation; ``None``: no closed form."""
    aliases: tuple[str, ...] = ()
    under: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Names that mean this one under a loop, where they mean another elsewhere."""
    defaults: Args = msgspec.field(default_factory=dict)
    """Arguments that change state or the shape of the step, with their defaults."""
    fixed: Args = msgspec.field(default_factory=dict)
    """Arguments that the class is always built with."""
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
    refuse_on_cuda: OnCuda | None = None
    unknown: str | None = None
    """Why there is no closed form."""

    @property
    def foreign(self) -> bool:
        """A class outside of the registry."""
        return not self.package

    @property
    def broken(self) -> bool:
        """It refuses even its own defaults."""
        return self.refuse is not None and self.refuse(self.defaults) is not None

    @property
    def closed_form(self) -> bool:
        """Its state is known without running it."""
        return self.layout is not None


def like(
    parameter: Parameter, *names: str, dtype: str = "", place: Place = Place.DEVICE
) -> list[Piece]:
    """State of the parameter's size, by these names, and of its dtype unless another is said."""
    return [(name, dtype or parameter.dtype, parameter.numel, place) for name in names]


def keeps(*names: str, dtype: str = "", place: Place = Place.DEVICE) -> Layout:
    """The layout of an optimizer that keeps such state and no other."""
    return lambda parameter, args: like(parameter, *names, dtype=dtype, place=place)


def number(args: Args, name: str, default: float = 0.0) -> float:
    """An argument as a number."""
    value = args.get(name)
    return float(value) if isinstance(value, int | float) else default
