"""Results as versioned JSON, readable by later versions."""

import contextlib
import errno
import json
import os
import stat
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from memcalc import untrusted_text
from memcalc.errors import UsageError
from memcalc.files import untrusted_values
from memcalc.records.trace import rename_component
from memcalc.version import __version__

SCHEMA = 2
"""1 spelled components of quantized weights otherwise."""
T = TypeVar("T")
_IN_THE_WAY = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV)
"""A file can be written, but none can be put in its place, or not with its owner."""


def encode(value: Any) -> Any:
    """Convert a record to plain JSON values."""
    return msgspec.to_builtins(value, str_keys=True)


def decode(kind: type[T], data: Any) -> T:
    """Convert plain JSON values to a record of this type, checking every value.

    Unknown keys are left out, so that a file of a later version can be read; missing keys take
    the record's defaults, so that a file of an earlier version can.

    Raises:
        ValueError: the data does not have the shape of the record; says where.
    """
    try:
        return msgspec.convert(data, kind, str_keys=True)
    except (msgspec.ValidationError, RecursionError) as error:
        raise ValueError(str(error)) from None


def part(kind: type[T], data: Any, path: Path, what: str) -> T:
    """Decode a piece of a result file; errors name the file and the piece.

    Raises:
        UsageError: it is damaged; says where.
    """
    try:
        return decode(kind, data)
    except ValueError as error:
        raise UsageError(f"{path} holds no {what} that can be read: {error}.") from None


def read(path: Path) -> dict[str, Any]:
    """Read a result file as a JSON object; its pieces are checked when they are decoded.

    Raises:
        UsageError: no such file, or it is not a result of memcalc, or of a later major version.
    """
    data = untrusted_values.json(path, hint="give a file that memcalc wrote")
    if not isinstance(data, dict) or "schema" not in data:
        raise UsageError(f"{path} is not a result of memcalc: give a file that memcalc wrote.")
    if type(data["schema"]) is not int or data["schema"] < 1:
        raise UsageError(f"{path} has no schema that memcalc wrote: give a file that it wrote.")
    if data["schema"] > SCHEMA:
        raise UsageError(f"{path} was written by a later memcalc: update memcalc to read it.")
    return data if data["schema"] == SCHEMA else _rename_components(data)


def _rename_components(value: Any) -> Any:
    """Return JSON values of schema 1 with components under their present names."""
    if isinstance(value, dict):
        return {rename_component(key): _rename_components(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_rename_components(one) for one in value]
    return rename_component(value) if isinstance(value, str) else value


def document(kind: str, body: dict[str, Any]) -> str:
    """Return a result as the JSON text of its file."""
    head = {"schema": SCHEMA, "kind": kind, "memcalc": __version__}
    return untrusted_text.json(json.dumps({**head, **body}, indent=1)) + "\n"


def write(path: Path, text: str) -> None:
    """Write a text to a file as UTF-8, atomically.

    Raises:
        UsageError: it cannot be written.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically: the whole file or nothing; a device or pipe is written to.

    An existing file keeps its mode and owner, a link stays a link, and a new file has the mode
    that the umask leaves. A device or a pipe is written to, never replaced.

    Raises:
        UsageError: the folder does not exist or cannot be written, or the disk is full.
    """
    check_place(path)
    try:
        if is_stream(path):
            number = _find_descriptor(path)
            # A copy of a descriptor shares its place in the file with whoever else writes there.
            with open(_open_stream(path) if number is None else os.dup(number), "wb") as stream:
                stream.write(data)
        else:
            put(Path(os.path.realpath(path)), data)
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot write {path}: {untrusted_values.reason(error)}.") from None


def _open_stream(path: Path) -> int:
    """Open a device or pipe for writing; raise OSError for a pipe without a reader."""
    try:
        number = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK)
    except OSError as error:
        raise OSError("nobody reads it") if error.errno == errno.ENXIO else error from None
    os.set_blocking(number, True)
    return number


def check_place(path: Path) -> None:
    """Raise UsageError if a file cannot be written here.

    Raises:
        UsageError: there is no such folder, it cannot be written, or the name does not print.
    """
    # Of a null the system says it itself.
    if not path.name.replace("\0", "").isprintable():
        raise UsageError(f"Cannot write {path.name!r}: the name has characters that do not print.")
    try:
        if not os.path.exists(os.path.realpath(path)):
            path.parent.joinpath(".").stat()
    except (OSError, ValueError) as error:
        raise UsageError(f"Cannot write {path}: {untrusted_values.reason(error)}.") from None


def is_stream(path: Path) -> bool:
    """Return True for a device, a pipe or a path such as ``/dev/stdout``.

    A name of a descriptor of this process (``/dev/stdout``) counts too, also if that is a file:
    others write there.
    """
    try:
        kind = os.stat(path).st_mode
        return not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)) or _find_descriptor(path) is not None
    except (OSError, ValueError):
        return False


def _find_descriptor(path: Path) -> int | None:
    """Return the descriptor of this process that a path names, or None."""
    while os.path.realpath(path.parent) != f"/proc/{os.getpid()}/fd":
        if not path.is_symlink():
            return None
        path = path.parent / path.readlink()
    return int(path.name)


def _open_new(path: Path) -> tuple[int, bool]:
    """Open a new file in a path's folder, without a name (``O_TMPFILE``) if possible.

    A process that is killed leaves nothing then.

    Returns:
        Its descriptor, and True if the file is at ``path`` already.
    """
    with contextlib.suppress(OSError):
        return os.open(path.parent, os.O_WRONLY | os.O_TMPFILE | os.O_CLOEXEC, 0o666), False
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    return os.open(path, flags, 0o666), True


def put(path: Path, data: bytes) -> None:
    """Replace a file atomically, keeping mode and owner, or overwrite it if that fails."""
    try:
        old = os.stat(path)
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileNotFoundError:
        old = None
    beside = path.with_name(f".memcalc-{os.urandom(6).hex()}")
    try:
        descriptor, is_named = _open_new(beside)
        with open(descriptor, "wb") as file:
            if old is not None:
                if (old.st_uid, old.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(descriptor, old.st_uid, old.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
            file.write(data)
            file.flush()
            os.fsync(descriptor)
            if not is_named:
                # Python follows the link only where it is given a descriptor, of no use here.
                os.link(f"/proc/self/fd/{descriptor}", beside, src_dir_fd=descriptor)
        os.replace(beside, path)
    except OSError as error:
        if old is None or error.errno not in _IN_THE_WAY:
            raise
        with open(path, "r+b") as file:
            file.write(data)
            file.truncate()
            file.flush()
            os.fsync(file.fileno())
    finally:
        # Also when it is interrupted, no half file stays behind.
        with contextlib.suppress(OSError):
            os.unlink(beside)
