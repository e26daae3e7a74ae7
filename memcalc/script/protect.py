"""Protects a user's files from a script, and tells what became of them."""

import sys
from collections.abc import Iterator
from pathlib import Path

from memcalc.children.child import show
from memcalc.children.keeper import THEN
from memcalc.script import failure, namespace
from memcalc.script.audit_guard import AuditGuard
from memcalc.script.checkpoint_marks import MARKED, NOTED, noted_paths, remove_marks
from memcalc.script.kept_files import restore, restore_late
from memcalc.script.new_files import Carried, carry_out

_NAMED = 3
"""Files that a sentence names at most."""
_ASIDE = "aside"
_GUARDED = (
    "files are protected in part here, for the kernel grants no mount namespace ({why}): what "
    "Python's own file operations change or delete in the script's process and in processes that "
    "it forks is put back at its end, but not what other programs (subprocesses) and compiled "
    "libraries change; checkpoints by torch.save and safetensors are not written"
)
_LATE = "a simulated script that was cut off had changed files: what was there before is in {}"
_AT_THE_END = """
import sys
from pathlib import Path
sys.path.append({home!r})
from memcalc.script.protect import put_back
sys.exit(put_back(Path({shared!r}), *sys.argv[1:]))
"""


def protect(shared: Path) -> None:
    """Protect the user's files from this process by a mount namespace or else an audit hook.

    ``shared``: the folder that this process shares with memcalc's own, within the run's.
    """
    try:
        if why := namespace.enter(shared).refused:
            # Before the script can change any.
            show(f"memcalc: {_GUARDED.format(why=why)}.\n")
            guard = AuditGuard(shared.with_name(_ASIDE))
            home = str(Path(__file__).resolve().parents[2])
            then = _AT_THE_END.format(home=home, shared=str(shared))
            shared.with_name(THEN).write_text(then)
            guard.install()
    except OSError as error:
        failure.leave(shared, failure.NO_ROOM.format(shared, error.strerror))
        sys.exit(1)


def put_back(shared: Path, late: str = "") -> str | None:
    """Delete marked files and restore backed-up ones; return a sentence on those that failed.

    ``late``: not empty: the script ended a while ago, and what is there now may be the user's.
    """
    remove_marks(shared / MARKED)
    aside = shared.with_name(_ASIDE)
    if late:
        made, failed = restore_late(aside)
        if made:
            print(f"memcalc: {_LATE.format(_join_few(made))}.", file=sys.stderr)
    else:
        failed = restore(aside)
    if failed:
        return f"memcalc: {_join_few(failed)} could not be put back: what was there is in {aside}."
    return None


def settle(shared: Path, *, again: bool) -> tuple[str, ...]:
    """Move an ended script's new files out of its namespace, unless it was run ``again``.

    Returns:
        What became of files, as an answer tells it.
    """
    found = namespace.read(shared)
    if found is None:
        return ()
    if found.refused:
        return (_GUARDED.format(why=found.refused),)
    checkpoints = noted_paths(shared / NOTED)
    return tuple(
        _describe_files(found, Carried() if again else carry_out(found, shared, checkpoints))
    )


def _describe_files(found: namespace.Namespace, carried: Carried) -> Iterator[str]:
    if carried.changed:
        yield (
            "files that were there before stay as they were: the script changed or deleted "
            f"{_join_few(carried.changed)}"
        )
    if carried.lost:
        yield f"{_join_few(carried.lost)} could not be kept"
    if places := [place for place in found.read_only if Path(place).parent != Path("/")]:
        yield f"the script could not write to {_join_few(places)}, which no overlay can cover"
    if found.in_memory:
        yield "the script's new files are not kept: they lay in main memory"


def _join_few(paths: list[str]) -> str:
    more = f" and {len(paths) - _NAMED} more" if len(paths) > _NAMED else ""
    return f"{', '.join(paths[:_NAMED])}{more}"
