"""``memcalc show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from memcalc.cli.command import argument, option, verb
from memcalc.cli.output import (
    Output,
    Verbose,
    deliver,
    deliver_explanation,
    deliver_predictions,
    format_option,
    in_full,
)
from memcalc.cli.saved import explanation_in
from memcalc.cli.values import TEXT, counted
from memcalc.errors import UsageError
from memcalc.files import artifact
from memcalc.files.formats import chosen
from memcalc.files.results import predictions

if TYPE_CHECKING:
    from memcalc.report.saved import Shown

_SNAPSHOTS = (".pickle", ".pkl")


@verb(
    "memcalc show run.json -v",
    "memcalc show snapshot.pickle",
    "memcalc show snapshot.pickle --alloc-conf expandable_segments:True",
)
def command(
    file: Annotated[
        Path,
        argument(
            "A result that memcalc wrote, or a .pickle of torch.cuda.memory._dump_snapshot.",
            metavar="FILE",
        ),
    ],
    format: Annotated[str | None, format_option("predictions", "explanation", "snapshot")] = None,
    output: Output = None,
    verbose: Verbose = False,
    top: Annotated[int, option("--top", value=counted(1), help="Kinds of storage to list.")] = 12,
    alloc_conf: Annotated[
        list[str] | None,
        option(
            "--alloc-conf",
            metavar="CONF",
            help="For a snapshot: PYTORCH_ALLOC_CONF to replay it under; repeatable.",
        ),
    ] = None,
    gpu: Annotated[
        str | None, option("--gpu", value=TEXT, help="For a snapshot: GPU to replay it on.")
    ] = None,
    device: Annotated[
        int, option("--device", value=counted(0), help="For a snapshot: index of the GPU.")
    ] = 0,
) -> None:
    """Show a saved result again, in any format; or a memory snapshot of a real run."""
    if file.suffix.lower() in _SNAPSHOTS:
        question = _Question(confs=tuple(alloc_conf or ()), gpu=gpu, device=device)
        _snapshot(file, question, format, output, top)
        return
    if alloc_conf or gpu:
        raise UsageError("--alloc-conf and --gpu are for snapshots (.pickle): leave them out.")
    data = artifact.read(file)
    kind = data.get("kind")
    if kind == "explanation":
        name = chosen("explanation", format, output)
        deliver_explanation(explanation_in(data, file), name, output, top, verbose=verbose)
    elif kind == "measurements":
        _measurements(file, format, output)
    elif (found := _other(data, file, in_full(verbose, output, format or ""), top)) is not None:
        name = chosen(found.kind, format, output)
        deliver(name, output, found.blocks, json=found.json)
    else:
        name = chosen("predictions", format, output)
        deliver_predictions(predictions(data, file), name, output, verbose=verbose)


def _other(data: dict[str, Any], file: Path, verbose: bool, top: int) -> Shown | None:
    from memcalc.report.saved import shown

    return shown(data, file, verbose=verbose, top=top)


def _measurements(file: Path, format: str | None, output: Path | None) -> None:
    from memcalc.files.results import load
    from memcalc.report import measured

    name = chosen("measurements", format, output)
    deliver(name, output, measured.blocks(load(file)))


class _Question(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot is asked."""

    confs: tuple[str, ...]
    gpu: str | None
    device: int


def _snapshot(
    file: Path, question: _Question, format: str | None, output: Path | None, top: int
) -> None:
    from memcalc.advice.explain import recorded
    from memcalc.catalog import gpus
    from memcalc.estimation.replays import UNLIMITED
    from memcalc.report import recorded as report

    name = chosen("snapshot", format, output)
    memory = gpus.find(question.gpu).memory if question.gpu is not None else UNLIMITED
    found = recorded.read(file, question.confs, device=question.device, device_bytes=memory)
    deliver(name, output, report.blocks(found, top), json=lambda: report.as_json(found))
