"""``memcalc show``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from memcalc.cli.command import FILE, argument, option, verb
from memcalc.cli.output import (
    OUTPUT,
    VERBOSE,
    deliver,
    deliver_explanation,
    deliver_predictions,
    format_option,
    in_full,
)
from memcalc.cli.saved import explanation_in
from memcalc.cli.values import counted
from memcalc.errors import UsageError
from memcalc.files import artifact
from memcalc.files.formats import chosen
from memcalc.files.results import predictions

if TYPE_CHECKING:
    from memcalc.report.saved import Shown

_SNAPSHOTS = (".pickle", ".pkl")


@verb
@argument(
    "file",
    "A result that memcalc wrote, or a .pickle of torch.cuda.memory._dump_snapshot.",
    type=FILE,
)
@format_option("predictions", "explanation", "snapshot")
@OUTPUT
@VERBOSE
@option("--top", type=counted(1), default=12, help="Kinds of storage to list.")
@option(
    "--alloc-conf",
    multiple=True,
    help="For a snapshot: PYTORCH_ALLOC_CONF to replay it under; repeatable.",
)
@option("--gpu", help="For a snapshot: GPU to replay it on.")
@option("--device", type=counted(0), default=0, help="For a snapshot: index of the GPU.")
def command(
    file: Path,
    format: str | None,
    output: Path | None,
    verbose: bool,
    top: int,
    alloc_conf: tuple[str, ...],
    gpu: str | None,
    device: int,
) -> None:
    """Show a saved result again, in any format; or a memory snapshot of a real run."""
    if file.suffix.lower() in _SNAPSHOTS:
        question = _Question(confs=alloc_conf, gpu=gpu, device=device)
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
