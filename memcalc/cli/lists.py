"""``memcalc list``: models, optimizers and GPUs."""

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from memcalc.cli.app import HELP, PlainGroup
from memcalc.cli.declare import verb
from memcalc.cli.output import terminal_width
from memcalc.errors import UsageError
from memcalc.wrap import fold

if TYPE_CHECKING:
    from memcalc.catalog.gpus import Gpu

T = TypeVar("T")


def _filter_by_name(word: str, rows: Iterable[T], name: Callable[[T], str]) -> list[T]:
    """Return the rows whose name contains a word; raise UsageError if none does."""
    found = [row for row in rows if word.lower() in name(row).lower()]
    if not found:
        raise UsageError(f"Nothing here has {word!r} in its name: leave it out to see all.")
    return found


@verb()
def models(word: str = "") -> None:
    """The bundled models, their parameters, and the task each is trained for by default."""
    from memcalc.catalog import inventory
    from memcalc.catalog import models as catalog
    from memcalc.units import format_count
    from memcalc.workload import tasks

    wanted = _filter_by_name(word, catalog.list_bundled_files(), str)
    _print_row(f"{'model':44} {'params':>7}  trained for")
    for name in wanted:
        source = catalog.find(name)
        head = tasks.choose(source, "auto")
        known = inventory.load(source, head.name)
        size = format_count(known.numel) if known is not None else ""
        _print_row(f"{name:44} {size:>7}  {head.name}")


@verb()
def optimizers(word: str = "") -> None:
    """All optimizers, with bytes of state per parameter by the rule of thumb."""
    from memcalc import registry

    for row in _filter_by_name(word, registry.rows(), lambda row: row.name):
        rule = f"{row.rule:g}" if row.rule is not None else "n/a"
        also = f" (also {', '.join(row.aliases)})" if row.aliases else ""
        _print_row(f"{row.name:28} {rule:>5} B/param  {row.summary}{also}")


@verb()
def gpus(word: str = "", context: bool = False) -> None:
    """All GPUs, with the memory CUDA offers a process."""
    from memcalc.catalog import gpus as catalog
    from memcalc.units import format_bytes

    named = _filter_by_name(word, catalog.table(), lambda gpu: gpu.name)
    if context:
        _print_contexts(named)
        return
    heads = ("GPU", "sold as", "to use", "capability", "multiprocessors")
    rows = [
        (
            gpu.name,
            f"{gpu.sold_as} GB",
            format_bytes(gpu.memory),
            ".".join(map(str, gpu.capability)),
            gpu.multiprocessors,
        )
        for gpu in named
    ]
    for name, sold_as, memory, capability, multiprocessors in (heads, *rows):
        typer.echo(f"{name:30} {sold_as:>8} {memory:>10} {capability:>11} {multiprocessors:>16}")


def _print_row(text: str) -> None:
    """Print one entry, folded to a terminal's width or else on one line."""
    columns = terminal_width(sys.stdout)
    typer.echo(text if columns is None else "\n".join(fold(text, columns, 6)))


def _print_contexts(named: Iterable["Gpu"]) -> None:
    """Print the range of context memory of each GPU, in MiB."""
    from memcalc.catalog.contexts import ranges
    from memcalc.records.prediction import Span
    from memcalc.units import MIB

    def words(span: Span) -> str:
        return f"{span.low / MIB:,.0f} to {span.high / MIB:,.0f}"

    typer.echo(f"{'':24} {'bare context':>14} {'with a model':>14} MiB")
    for gpu in (*named, None):
        held = ranges(gpu)
        name = gpu.name if gpu is not None else "any"
        _print_row(
            f"{name:24} {words(held.context):>14} {words(held.total):>14}  {held.total.source}"
        )


_app = typer.Typer(
    help="List the models, optimizers and GPUs that memcalc knows.",
    cls=PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    context_settings=HELP,
)
command: Any = typer.main.get_group(_app)
command.commands = {"models": models, "optimizers": optimizers, "gpus": gpus}
