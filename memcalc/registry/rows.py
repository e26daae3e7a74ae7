"""Makes the registry's rows of optimizers.toml."""

import functools
from pathlib import Path

import msgspec

from memcalc.files import untrusted_values
from memcalc.files.artifact import decode
from memcalc.records.model import Parameter, Place
from memcalc.records.values import Scalar
from memcalc.registry import bitsandbytes
from memcalc.registry.row import COMMON, Args, Layout, Piece, Row, like
from memcalc.registry.states import LAYOUTS, REFUSALS

_PROJECTED = "its projections depend on the rank chosen for each matrix"
_LOW_RANK = ("galore-torch", "apollo-torch")
_OWN_CODE_RUNS = ("torch", "transformers", "memcalc")
"""Packages whose optimizers run on the simulated GPU."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An optimizer's entry in optimizers.toml; see the file's head."""

    path: str = msgspec.field(name="class")
    name: str = ""
    summary: str = "low-rank projected states"
    rule: float | None = None
    steps: str = ""
    state: str = ""
    asked: dict[str, str] = {}
    dtype: str = ""
    place: Place = Place.DEVICE
    layout: str = ""
    defaults: dict[str, Scalar] = {}
    unset: str = ""
    takes: str = ""
    lacks: str = ""
    aliases: str = ""
    loop_aliases: dict[str, tuple[str, ...]] = {}
    twin_8bit: str | None = None
    in_backward: bool = False
    precision: str | None = None
    untraceable: str | None = None
    unknown: str | None = None

    def make_state(self, parameter: Parameter, args: Args) -> list[Piece]:
        """Describe the state tensors of one parameter, step counters first."""
        place = Place.DEVICE if args.get("capturable") or args.get("fused") else Place.HOST
        counters: list[Piece] = [(name, "float32", 1, place) for name in self.steps.split()]
        more = (name for argument, name in self.asked.items() if args.get(argument))
        names = (*self.state.split(), *more)
        return [*counters, *like(parameter, *names, dtype=self.dtype, place=self.place)]


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return the registry's rows of all optimizers, torch's first."""
    text = Path(__file__).with_name("optimizers.toml").read_text("utf-8")
    data = untrusted_values.parse_toml(text)
    families = decode(tuple[bitsandbytes.Family, ...], data.pop("bitsandbytes"))
    by_package = decode(dict[str, tuple[Entry, ...]], data)
    found = {
        package: [_make_row(package, entry) for entry in entries]
        for package, entries in by_package.items()
    }
    eight = [*bitsandbytes.rows(families), *found.pop("memcalc")]
    first = found.pop("torch")
    return (*first, *eight, *(row for part in found.values() for row in part))


def _make_row(package: str, entry: Entry) -> Row:
    layout: Layout | None = LAYOUTS[entry.layout] if entry.layout else entry.make_state
    unknown = _PROJECTED if package in _LOW_RANK else entry.unknown
    runs = package in _OWN_CODE_RUNS
    # A row with a name of its own settles how the step runs.
    flags = ("foreach", "differentiable") if package == "torch" and not entry.name else ()
    return Row(
        name=entry.name or entry.path.rpartition(".")[2].lower(),
        implementation=entry.path,
        summary=entry.summary,
        layout=None if unknown else layout,
        aliases=tuple(entry.aliases.split()),
        loop_aliases=entry.loop_aliases,
        defaults={**dict.fromkeys((*flags, *entry.unset.split())), **entry.defaults},
        takes=(*(a for a in COMMON if a != entry.lacks), *entry.takes.split()),
        twin_8bit=entry.twin_8bit,
        rule=entry.rule,
        package=package,
        extra=None if runs else package,
        untraceable=entry.untraceable if runs else f"{package} runs kernels or hooks of its own",
        in_backward=entry.in_backward,
        precision=entry.precision,
        refuse=REFUSALS.get(package),
        unknown=unknown,
    )
