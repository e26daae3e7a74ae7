"""Messages that processes of a launch leave for each other in a folder, a file for each rank.

A rank that waits for a message writes so to a file, and the process that runs the ranks starts the
rank it waits for. Such a helper runs only while another rank waits for it.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

FOLDER = "MEMCALC_MAIL"
"""Variable with the folder; without it a process has nobody to ask."""
RANK = "MEMCALC_RANK"
"""Variable with the number of this process."""
HELPER = "MEMCALC_HELPER"
"""Variable that is set where a rank runs for its messages only."""
_LOOK = 0.01
"""Seconds between two looks into the folder."""
_STUCK = 2.0
"""Seconds for which ranks must wait for each other in a ring before that is taken to last."""
_HEAD = struct.Struct("<II")


class EndlessWaitError(BaseException):
    """A rank waits for a message that never comes; ``except Exception`` does not catch it."""


class Wait(msgspec.Struct, frozen=True, kw_only=True):
    """A message that a rank waits for."""

    source: int
    channel: str
    number: int


class Ties(msgspec.Struct, frozen=True, kw_only=True):
    """How a process is tied to others that train with it."""

    groups: tuple[tuple[int, ...], ...] = ()
    """Ranks of each group that the program makes, in order; all processes make the same."""
    peers: tuple[int, ...] = ()
    """Ranks that this one sends to or receives from, each alone."""


class Mail:
    """The messages that this rank sends and asks for."""

    def __init__(self, folder: Path, rank: int, *, helps: bool) -> None:
        self._folder, self._rank, self._helps = folder, rank, helps
        self._posted: dict[str, int] = {}
        self._read: dict[int, int] = {}
        """Bytes of each rank's file that were read."""
        self._known: dict[tuple[int, str], list[bytes]] = {}

    def post(self, channel: str, content: bytes) -> None:
        """Write a message to this rank's file; a helper then sleeps until a rank waits for one."""
        self._posted[channel] = self._posted.get(channel, 0) + 1
        name = channel.encode()
        with self._file(self._rank, "mail").open("ab") as file:
            file.write(_HEAD.pack(len(name), len(content)) + name + content)
        while self._helps and not self._has_waiter():
            if self._file(self._rank, "asked").exists():
                self._helps = False
            time.sleep(_LOOK)

    def tell_ties(self, ties: Ties) -> None:
        """Write the groups and peers of this rank to a file."""
        _write(self._file(self._rank, "ties"), msgspec.json.encode(ties))

    def fetch(self, source: int, channel: str, number: int, call: str) -> bytes:
        """Wait for a message of another rank and return it.

        Raises:
            EndlessWaitError: it will never be.
        """
        found = self._find_message(source, channel, number)
        if found is not None:
            return found
        own = self._file(self._rank, "waits")
        wait = Wait(source=source, channel=channel, number=number)
        _write(own, msgspec.json.encode(wait))
        try:
            return self._poll(wait, call)
        finally:
            own.unlink(missing_ok=True)

    def _poll(self, wait: Wait, call: str) -> bytes:
        """Poll for a message; raise EndlessWaitError if the sender ended or waits for this rank."""
        ring_since: float | None = None
        while True:
            ended = self._file(wait.source, "ended").exists()
            found = self._find_message(wait.source, wait.channel, wait.number)
            if found is not None:
                return found
            if ended:
                raise EndlessWaitError(
                    f"rank {self._rank} would wait without end in {call}: rank {wait.source} "
                    "ends without sending that."
                )
            ring_since = (ring_since or time.monotonic()) if self._in_ring(wait) else None
            if ring_since is not None and time.monotonic() > ring_since + _STUCK:
                raise EndlessWaitError(
                    f"rank {self._rank} would wait without end in {call}: rank {wait.source} "
                    "waits for this rank too."
                )
            time.sleep(_LOOK)

    def _in_ring(self, wait: Wait) -> bool:
        """Return True if a rank waits for this one, directly or through others."""
        waits = {self._rank: wait, **dict(waiting(self._folder))}
        at, seen = wait.source, {self._rank}
        while at in waits and at not in seen:
            seen.add(at)
            at = waits[at].source
        return at == self._rank

    def _has_waiter(self) -> bool:
        """Return True if a rank waits for a message that this rank has not sent."""
        return any(
            wait.source == self._rank and self._posted.get(wait.channel, 0) <= wait.number
            for _, wait in waiting(self._folder)
        )

    def _find_message(self, source: int, channel: str, number: int) -> bytes | None:
        self._read_from(source)
        known = self._known.get((source, channel), [])
        return known[number] if number < len(known) else None

    def _read_from(self, source: int) -> None:
        """Read the complete messages that a rank has posted since the last read."""
        with contextlib.suppress(FileNotFoundError), self._file(source, "mail").open("rb") as file:
            file.seek(self._read.get(source, 0))
            while len(head := file.read(_HEAD.size)) == _HEAD.size:
                sizes = _HEAD.unpack(head)
                name, content = (file.read(size) for size in sizes)
                if (len(name), len(content)) != sizes:
                    break
                self._known.setdefault((source, name.decode()), []).append(content)
                self._read[source] = file.tell()

    def _file(self, rank: int, kind: str) -> Path:
        return self._folder / f"{rank}.{kind}"


def from_environment() -> Mail | None:
    """Return the ``Mail`` of this process, or None if it is not one rank of several."""
    folder = os.environ.get(FOLDER)
    if folder is None:
        return None
    return Mail(Path(folder), int(os.environ[RANK]), helps=HELPER in os.environ)


def read_ties(folder: Path, rank: int) -> Ties:
    """Return the groups and peers that a rank has noted so far."""
    with contextlib.suppress(FileNotFoundError):
        return msgspec.json.decode((folder / f"{rank}.ties").read_bytes(), type=Ties)
    return Ties()


def waiting(folder: Path) -> Iterator[tuple[int, Wait]]:
    """Yield each rank that waits, with the message it waits for."""
    for path in folder.glob("*.waits"):
        with contextlib.suppress(FileNotFoundError):
            yield int(path.stem), msgspec.json.decode(path.read_bytes(), type=Wait)


def ask_to_finish(folder: Path, rank: int) -> None:
    """Make the file that lets a helper rank run to its end."""
    (folder / f"{rank}.asked").touch()


def announce_end(folder: Path, rank: int) -> None:
    """Make the file that tells other ranks that a rank has ended."""
    (folder / f"{rank}.ended").touch()


def _write(path: Path, content: bytes) -> None:
    """Write a file atomically: a reader never sees a part."""
    beside = path.with_suffix(".new")
    beside.write_bytes(content)
    beside.replace(path)
