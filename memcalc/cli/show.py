"""``memcalc show``."""

from pathlib import Path

from memcalc.cli import output as out
from memcalc.cli.declare import verb
from memcalc.errors import UsageError
from memcalc.files import artifact
from memcalc.files.results import load, predictions

_SNAPSHOTS = (".pickle", ".pkl")


@verb(
    "memcalc show run.json -v",
    "memcalc show snapshot.pickle",
    "memcalc show snapshot.pickle --alloc-conf expandable_segments:True",
)
def command(
    file: Path,
    format: str | None = None,
    output: Path | None = None,
    verbose: bool = False,
    top: int = 12,
    alloc_conf: list[str] | None = None,
    gpu: str | None = None,
    device: int = 0,
) -> None:
    """Show a saved result again, in any format; or a memory snapshot of a real run."""
    from memcalc.report import measured
    from memcalc.report.saved import KINDS, read

    if file.suffix.lower() in _SNAPSHOTS:
        name = out.chosen("snapshot", format, output)
        from memcalc.advice.explain import recorded
        from memcalc.catalog import gpus
        from memcalc.estimation.engine import engine

        memory = gpus.find(gpu).memory if gpu is not None else None
        found = recorded.read(file, engine.player(), alloc_conf or (), device=device, memory=memory)
        out.deliver_answer(found, name, output, top=top)
        return
    if alloc_conf or gpu:
        raise UsageError("--alloc-conf and --gpu are for snapshots (.pickle): leave them out.")
    data = artifact.read(file)
    kind = data.get("kind")
    if kind == "measurements":
        out.deliver(out.chosen(kind, format, output), output, measured.blocks(load(file)))
    elif kind in KINDS:
        name = out.chosen(str(kind), format, output)
        out.deliver_answer(read(data, file), name, output, top=top, verbose=verbose)
    else:
        name = out.chosen("predictions", format, output)
        out.deliver_predictions(predictions(data, file), name, output, verbose=verbose)
