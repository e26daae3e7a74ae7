"""Reads a recorded memory snapshot without running code in it.

Source: ``torch.cuda.memory._dump_snapshot`` of torch 2.11 and 2.13.
"""

import contextlib
import io
import os
import pickle
import resource
from collections import Counter
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec

from memcalc.errors import UsageError
from memcalc.files import untrusted_values
from memcalc.files.artifact import decode
from memcalc.records.levels import Levels

_HOW = "record one with torch.cuda.memory._dump_snapshot(path)"
_LARGEST = 16 << 30
_EACH, _ROOM = 64, 256 << 20
"""A byte of a snapshot becomes at most so many in memory (21 to 32 were seen), beside some room."""

_LONGEST_SITE = 1000


Size = Annotated[int, msgspec.Meta(ge=0, le=1 << 50)]
"""Bytes; a thousand times what the largest machines have."""
Number = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
"""An address, a stream or an index."""


class BlockState(StrEnum):
    """The states of a block."""

    ALLOCATED = "active_allocated"
    PENDING = "active_pending_free"
    """Freed by the program; another stream may still use it."""
    INACTIVE = "inactive"


class BlockRecord(msgspec.Struct, frozen=True):
    """A block of a segment."""

    size: Size
    requested_size: Size
    """What was asked for; in an inactive block, the last time it was in use."""
    state: str
    """A ``BlockState``."""
    frames: Any = ()
    """Where it was allocated, innermost first; looked at only where it is shown."""


class SegmentRecord(msgspec.Struct, frozen=True):
    """Memory without a gap, taken from the device; its blocks tile it in order of address."""

    device: Number
    address: Number
    total_size: Size
    stream: Number
    segment_type: str
    """``small`` or ``large``."""
    blocks: list[BlockRecord]


class Entry(msgspec.Struct, frozen=True):
    """An action of the allocator."""

    action: str
    size: Size = 0
    stream: Number = 0
    addr: Number = 0


class RecordedSettings(msgspec.Struct, frozen=True):
    """The text of ``PYTORCH_ALLOC_CONF``, and the settings made of it."""

    text: str | None = msgspec.field(default=None, name="PYTORCH_CUDA_ALLOC_CONF")
    expandable_segments: bool = False
    max_split_size: Number = -1
    garbage_collection_threshold: float = 0.0
    roundup_power2_divisions: dict[str, Number] = msgspec.field(default_factory=dict)


class Snapshot(msgspec.Struct, frozen=True):
    """The parts of a snapshot that memcalc reads."""

    segments: list[SegmentRecord]
    device_traces: list[list[Entry]]
    """What happened on each device."""
    allocator_settings: RecordedSettings | None = None


def read_snapshot(path: Path) -> Snapshot:
    """Read a memory snapshot's pickle file without running code in it.

    Raises:
        UsageError: there is no such file, it is no snapshot, or it asks to load code.
    """
    data = untrusted_values.content(path, _LARGEST)
    try:
        with _limit_memory(_EACH * len(data) + _ROOM):
            return decode(Snapshot, _PlainUnpickler(io.BytesIO(data)).load())
    except UsageError as refusal:
        raise UsageError(f"{path} was not opened: {refusal}; {_HOW}.") from None
    except Exception as error:
        why = f" ({untrusted_values.reason(error)})" if isinstance(error, ValueError) else ""
        raise UsageError(f"{path} is not a memory snapshot{why}; {_HOW}.") from None


@contextlib.contextmanager
def _limit_memory(count: int) -> Iterator[None]:
    """Limit this process's memory growth: a nine-byte pickle can ask for gigabytes."""
    before, hard = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * os.sysconf("SC_PAGE_SIZE") + count
    known = [one for one in (limit, before, hard) if one != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_AS, (min(known), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (before, hard))


class Site(msgspec.Struct, frozen=True, kw_only=True):
    """Live storages that came from the same line."""

    name: str
    count: int
    bytes: int
    """Sum of the blocks' sizes."""


class PoolSize(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes reserved by one pool (``small`` or ``large``) of one stream."""

    pool: str
    stream: int
    bytes: int


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """The memory of one device at the end of a snapshot. Sizes in bytes."""

    levels: Levels
    segments: int
    largest_free: int
    """Size of the largest free block."""
    reserved_by_pool: tuple[PoolSize, ...]
    sites: tuple[Site, ...]
    """Where live storages came from, largest first."""


def breakdown(snapshot: Snapshot, *, device: int = 0) -> Breakdown:
    """Sum up the segments and blocks of one device at a snapshot's end."""
    own = [segment for segment in snapshot.segments if segment.device == device]
    blocks = [block for segment in own for block in segment.blocks]
    active = [block for block in blocks if block.state != BlockState.INACTIVE]
    held = [block for block in active if block.state == BlockState.ALLOCATED]
    reserved: Counter[tuple[str, int]] = Counter()
    for segment in own:
        reserved[segment.segment_type, segment.stream] += segment.total_size
    counts: Counter[str] = Counter(_name_site(block) for block in held)
    sizes: Counter[str] = Counter()
    for block in held:
        sizes[_name_site(block)] += block.size
    free = [block.size for block in blocks if block.state == BlockState.INACTIVE]
    return Breakdown(
        levels=Levels(
            requested=sum(block.requested_size for block in active),
            allocated=sum(block.size for block in held),
            active=sum(block.size for block in active),
            reserved=sum(reserved.values()),
        ),
        segments=len(own),
        largest_free=max(free, default=0),
        reserved_by_pool=tuple(
            PoolSize(pool=pool, stream=stream, bytes=size)
            for (pool, stream), size in reserved.items()
        ),
        sites=tuple(
            Site(name=name, count=counts[name], bytes=size) for name, size in sizes.most_common()
        ),
    )


class _PlainUnpickler(pickle.Unpickler):
    """Builds containers and scalars, and nothing that has to be looked up by name."""

    def find_class(self, module: str, name: str) -> NoReturn:
        raise UsageError(f"it wants to load {module}.{name}, and a snapshot holds plain values")

    def persistent_load(self, pid: object) -> NoReturn:
        raise UsageError("it refers to something outside itself")


def _name_site(block: BlockRecord) -> str:
    """Return the line of Python that allocated a block, or the innermost frame with a file."""
    try:
        frames = [frame for frame in block.frames or () if frame["filename"] != "??"]
        python = [frame for frame in frames if frame["filename"].endswith((".py", ">"))]
        frame = (python or frames)[0]
        return f"{frame['filename']}:{frame['line']}:{frame['name']}"[:_LONGEST_SITE]
    except (KeyError, IndexError, TypeError, AttributeError, ValueError):
        return "(no frames recorded)"
