"""``memcalc show``."""

from pathlib import Path

from memcalc.cli.declare import verb
from memcalc.cli.output import Output, deliver
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
    output: Output,
    top: int = 8,
    alloc_conf: list[str] | None = None,
    gpu: str | None = None,
    device: int = 0,
) -> None:
    """Show a saved result again, in any format; or a memory snapshot of a real run."""
    from memcalc.report import measured
    from memcalc.report.saved import KINDS, read

    if file.suffix.lower() in _SNAPSHOTS:
        out = output.choose_format("snapshot")
        from memcalc.advice.explain import recorded
        from memcalc.catalog import gpus
        from memcalc.estimation.engine import engine

        memory = gpus.find(gpu).memory if gpu is not None else None
        found = recorded.read(file, engine.player(), alloc_conf or (), device=device, memory=memory)
        out.deliver(found, top=top)
        return
    if alloc_conf or gpu:
        raise UsageError("--alloc-conf and --gpu are for snapshots (.pickle): leave them out.")
    data = artifact.read(file)
    kind = data.get("kind")
    if kind == "measurements":
        out = output.choose_format(kind)
        deliver(str(out.format), out.file, measured.blocks(load(file)))
    elif kind in KINDS:
        output.choose_format(str(kind)).deliver(read(data, file), top=top)
    else:
        output.choose_format("predictions").deliver(predictions(data, file))
