"""``memcalc list``: what is known."""

from __future__ import annotations

import typer

from memcalc.cli.options import guarded

app = typer.Typer(
    help="List the models, optimizers and GPUs that memcalc knows.", no_args_is_help=True
)


@app.command("models")
@guarded
def models() -> None:
    """The bundled models and the head each is trained with by default."""
    from memcalc.catalog import models as catalog
    from memcalc.catalog import tasks

    for name in catalog.bundled():
        source = catalog.find(name)
        task = tasks.choose(source, "auto")
        typer.echo(f"{name:44} {source.model_type:14} {task.name:24} {task.class_name}")


@app.command("optimizers")
@guarded
def optimizers() -> None:
    """All optimizers, with bytes of state per parameter by the rule of thumb."""
    from memcalc import registry

    for row in registry.rows():
        rule = f"{row.rule:g}" if row.rule is not None else "n/a"
        also = f" (also {', '.join(row.aliases)})" if row.aliases else ""
        typer.echo(f"{row.name:28} {rule:>5} B/param  {row.summary}{also}")


@app.command("gpus")
@guarded
def gpus() -> None:
    """All GPUs, with the memory CUDA offers a process."""
    from memcalc.catalog import gpus as catalog
    from memcalc.units import format_bytes

    for gpu in catalog.table():
        major, minor = gpu.capability
        typer.echo(
            f"{gpu.name:24} {format_bytes(gpu.memory):>10}  compute capability {major}.{minor}, "
            f"{gpu.multiprocessors} multiprocessors"
        )
