"""Protects a user's files from a script: by a mount namespace, or by setting them aside."""

from collections.abc import Iterator
from pathlib import Path

from memcalc.script import namespace, set_aside
from memcalc.script.checkpoint_marks import NOTED, noted_folders
from memcalc.script.new_files import Carried, carry_out

_LAYERS = "layers"
_NAMED = 3
"""Files that a sentence names at most."""


def protect(shared: Path, command: list[str]) -> None:
    """Protect files from this process, before it has threads.

    Args:
        shared: what this process shares with memcalc's own, a folder in that of the run.
        command: starts this process again, where that is the way.
    """
    if set_aside.is_used():
        return
    if namespace.enter(shared, shared.with_name(_LAYERS)).refused:
        set_aside.begin_again(shared.parent, command)


def settle(shared: Path, *, again: bool) -> tuple[str, ...]:
    """Keep the new files of a script that has ended, unless it ran ``again`` as it ran before.

    Returns:
        What became of files, as an answer tells it.
    """
    found = namespace.read(shared)
    if found is None:
        return ()
    if found.refused:
        return tuple(_put_back(found.refused, shared.parent))
    checkpoints = noted_folders(shared / NOTED)
    return tuple(_told(found, Carried() if again else carry_out(found, checkpoints)))


def _told(found: namespace.Namespace, carried: Carried) -> Iterator[str]:
    if carried.changed:
        yield (
            "files that were there before stay as they were: the script changed or deleted "
            f"{_named(carried.changed)}"
        )
    if carried.lost:
        yield f"{_named(carried.lost)} could not be kept"
    if places := [place for place in found.read_only if Path(place).parent != Path("/")]:
        yield f"the script could not write to {_named(places)}, which no overlay can cover"
    if found.in_memory:
        yield "the script's new files are not kept: they lay in main memory"


def _put_back(why: str, folder: Path) -> Iterator[str]:
    lost, changed = set_aside.not_put_back(folder), set_aside.changed(folder)
    if lost:
        yield f"{_named(lost)} could not be put back: look into {folder}"
    back = [path for path in changed if path not in lost]
    yield (
        f"there is no mount namespace here ({why}): files from before that the script changed or "
        f"deleted through the C library were put back as it ended ({_named(back) or 'none'}); "
        "those that a program changes by system calls of its own are changed"
    )


def _named(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"{', '.join(paths[:_NAMED])}{more}"
