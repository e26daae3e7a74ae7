"""The GPUs that memcalc knows (configs/gpus.toml), their aliases and their generations."""

import functools
import re
from collections import defaultdict
from typing import Any

import msgspec

from memcalc.errors import UsageError, unknown
from memcalc.files import shipped
from memcalc.files.artifact import decode
from memcalc.units import GIB, KIB, MIB


class Architecture(msgspec.Struct, frozen=True, kw_only=True):
    """Properties of a multiprocessor (configs/compute_capabilities.toml)."""

    name: str
    threads: int
    """Most threads that a multiprocessor holds at once."""
    shared_memory: int
    """Bytes of a multiprocessor."""
    shared_memory_of_block: int
    """Most bytes of them that one block may ask for."""
    tile_bytes: int = 0
    """Sizes of a matrix that Tensor Cores like are multiples of this; 0: there are none."""
    bf16: bool = False
    """It computes in bf16; PyTorch emulates it elsewhere."""
    tf32: bool = False


@functools.cache
def architectures() -> dict[tuple[int, int], Architecture]:
    """Return all architectures by compute capability."""

    def make_table(data: dict[str, Any]) -> dict[tuple[int, int], Architecture]:
        return {
            parse_capability(capability): decode(Architecture, _in_bytes(entry))
            for entry in data["architecture"]
            for capability in entry["capabilities"]
        }

    return shipped.read("compute_capabilities.toml", make_table)


def _in_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    shared, of_block = entry["shared_kib"] * KIB, entry["shared_kib_of_block"] * KIB
    return {**entry, "shared_memory": shared, "shared_memory_of_block": of_block}


def parse_capability(text: str) -> tuple[int, int]:
    """Read a compute capability such as ``9.0``."""
    major, minor = text.split(".")
    return int(major), int(minor)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a card and of PyTorch by which kernels are chosen."""

    capability: tuple[int, int]
    """Compute capability, such as (9, 0)."""
    multiprocessors: int
    torch: tuple[int, int]
    """PyTorch's version, such as (2, 13)."""

    @property
    def architecture(self) -> Architecture:
        """The architecture of its capability."""
        return architectures()[self.capability]


_SIZE = re.compile(r"(?<!\d)(\d{1,3}) ?gi?b\b")
_WORDS = ((r"with max-?q design", "maxq"), (r"\bmobile\b", "laptop"))
_EMPTY = re.compile(r"nvidia|geforce|tesla|generation|gpu|[^a-z0-9]")
_SERIES = re.compile(r"^(quadro)?(rtx|gtx)?(pro)?")
_OTHERS = re.compile(
    r"amd\b|radeon|instinct|\brx ?\d{4}|\bmi ?\d{2,3}[a-z]?\b|\bgfx\d|intel|\barc\b|gaudi|apple|"
    r"\bmps\b|\bm[1-9]( ?(pro|max|ultra))?\b|google|\btpu\b|trainium|inferentia|ascend|\bnpu\b"
)
_NEAR = 0.05
"""Share by which a total that was read may differ from the one on record: drivers keep more or
less. Sizes of one name differ by more than a tenth."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU model. Sizes in bytes."""

    name: str
    driver_name: str
    """What its driver calls it: ``torch.cuda.get_device_name``, nvidia-smi."""
    memory: int
    """What CUDA offers a process (``cudaMemGetInfo``)."""
    nvml_memory: int | None = None
    """What NVML and nvidia-smi report as total."""
    sold_as: int
    """Gigabytes by the name on the box."""
    capability: tuple[int, int]
    multiprocessors: int
    bandwidth: int
    """Bytes per second."""
    tensor_flops: float | None = None
    """Dense half-precision operations per second with fp32 sums; ``None``: not on record."""
    aliases: tuple[str, ...] = ()
    boxed_as: str = ""
    """What several of it in one box are called, where other cards bear that name as well."""
    source: str
    """Where the sizes were read, or what they were derived from."""


@functools.cache
def table() -> tuple[Gpu, ...]:
    """Return all GPUs, in the order of the file."""

    def make_table(data: dict[str, Any]) -> tuple[Gpu, ...]:
        entries = {entry["name"]: entry for entry in data["gpu"]}
        return decode(tuple[Gpu, ...], [_gpu(entry, entries) for entry in entries.values()])

    return shipped.read("gpus.toml", make_table)


class Meant(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU of a name, and how many of them the named machine has."""

    gpu: Gpu
    count: int | None = None
    """GPUs of a machine that is rented by this name; ``None``: it is no machine."""
    why: str = ""
    """In a sentence; empty: the card has that name and no other has it."""


@functools.cache
def meant(name: str) -> Meant:
    """Find what a person means by a name: a card, the usual one of several, or a machine's cards.

    Case, spaces, dashes, the maker's name and a size that says nothing new make no difference.

    Raises:
        UsageError: no such GPU, or cards that have little in common; says which there are.
    """
    plain, size = _parts(name)
    found = _find_cards(plain, size)
    if len(found) == 1:
        return Meant(gpu=next(iter(found.values())))
    if found:
        least = min(found.values(), key=lambda gpu: gpu.memory)
        why = f"the smallest of {', '.join(found)}; name another to change that"
        return Meant(gpu=least, why=why)
    for gpu in table():
        if gpu.boxed_as and _parts(gpu.boxed_as)[0] == plain and size in (None, gpu.sold_as):
            return Meant(gpu=gpu, why="the form most clouds rent; name another card to change that")
    machine = _machines().get(name.strip().lower())
    if machine is None:
        raise _none(name, plain, size)
    return machine


@functools.cache
def find(name: str, total: int | None = None) -> Gpu:
    """Find a GPU by the name that a driver or a person gives it.

    Args:
        name: such as ``RTX 4090``, ``4090`` or ``NVIDIA A100-SXM4-80GB``.
        total: bytes of the card, where they were read; they decide between sizes of one name.

    Raises:
        UsageError: no such GPU, or several; says which there are.
    """
    if total is None:
        return meant(name).gpu
    found = _find_cards(*_parts(name), total)
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise UsageError(f"There are several GPUs called {name!r}: name one of {', '.join(found)}.")
    raise _none(name, *_parts(name))


def rented() -> tuple[Gpu, ...]:
    """Return the cards that most clouds rent, smallest first."""
    names = shipped.read("machines.toml", lambda data: tuple(data["rented"]))
    return tuple(sorted(map(find, names), key=lambda gpu: gpu.memory))


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Rent of one GPU for an hour, to the order of magnitude."""

    date: str
    source: str
    of: dict[str, float]
    """US dollars, by the GPU's name in the catalog."""


@functools.cache
def prices() -> Prices:
    """Read the dated table of prices."""
    return shipped.read("machines.toml", lambda data: decode(Prices, data["prices"]))


@functools.cache
def _machines() -> dict[str, Meant]:
    """Return the machines that clouds rent, by their names in lower case."""
    cards = {gpu.name: gpu for gpu in table()}

    def make_table(data: dict[str, Any]) -> dict[str, Meant]:
        return {
            name.lower(): Meant(
                gpu=cards[one["gpu"]],
                count=one.get("count", 1),
                why=f"says {one['source'].partition(' (')[0]}",
            )
            for one in data["machine"]
            for name in one["names"]
        }

    return shipped.read("machines.toml", make_table)


def _find_cards(plain: str, size: int | None, total: int | None = None) -> dict[str, Gpu]:
    """Find the cards of a name; several where only a size could tell them apart."""
    by_size = _by_name().get(plain, {})
    exact = by_size.get(size)
    if exact is not None and (total is None or _is_near(exact, total)):
        return {exact.name: exact}
    found = {gpu.name: gpu for gpu in by_size.values() if size in (None, gpu.sold_as)}
    if total is not None:
        found = {key: gpu for key, gpu in found.items() if _is_near(gpu, total)} or found
    return found if exact is None or len(found) == 1 else {exact.name: exact}


def _none(name: str, plain: str, size: int | None) -> UsageError:
    if not plain and size is not None:
        cards = ", ".join(gpu.name for gpu in rented() if gpu.sold_as == size)
        one = f"name one of {cards}, or " if cards else ""
        return UsageError(
            f"{name!r} is a size, not a GPU: {one}type memcalc fit MODEL --memory '{size} GB'."
        )
    if _OTHERS.search(name.lower()):
        return UsageError(
            f"{name!r} is not supported: memcalc knows NVIDIA GPUs; see memcalc list gpus."
        )
    if name.isdecimal() and len(name) < 3:
        return UsageError(f"{name!r} is no GPU: name its kind, such as t4 or 4090, not its number.")
    wanted = _SERIES.sub("", plain)
    longer = re.compile(re.escape(wanted) + r"($|\D)")
    cores = {gpu.name: _SERIES.sub("", _parts(gpu.name)[0]) for gpu in table()}
    begun = [name for name, core in cores.items() if wanted and longer.match(core)]
    if begun:
        return UsageError(f"{name!r} alone is no GPU: name one of {', '.join(begun)}.")
    return unknown("GPU", name, [gpu.name for gpu in table()], hint="see memcalc list gpus.")


def _is_near(gpu: Gpu, total: int) -> bool:
    return abs((gpu.nvml_memory or gpu.memory) - total) <= _NEAR * total


@functools.cache
def _by_name() -> dict[str, dict[int | None, Gpu]]:
    """Index the cards by the plain name, then by the size in the name."""
    found: dict[str, dict[int | None, Gpu]] = defaultdict(dict)
    for gpu in table():
        for name in (gpu.name, *gpu.aliases):
            plain, size = _parts(name)
            spelled = [(plain, size), (_EMPTY.sub("", name.lower()), None)]
            # A number is enough where one card bears it.
            spelled += [
                (re.sub(r"^[rg]tx(?=\d)", "", key), gigabytes) for key, gigabytes in spelled
            ]
            for key, gigabytes in spelled:
                if found[key].setdefault(gigabytes, gpu) is not gpu:
                    raise ValueError(f"two GPUs are called {name}")
    return found


def _parts(name: str) -> tuple[str, int | None]:
    """Split a name into its plain letters and the gigabytes in it."""
    text = name.lower()
    for word, replacement in _WORDS:
        text = re.sub(word, replacement, text)
    size = _SIZE.search(text)
    if size is not None:
        text = text[: size.start()] + " " + text[size.end() :]
    return _EMPTY.sub("", text), int(size[1]) if size is not None else None


def _gpu(entry: dict[str, Any], entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Convert the sizes of a row of the file to whole bytes."""
    source = entry["source"]
    if "memory_gib" in entry:
        memory = int(entry["memory_gib"] * GIB)
    else:
        like = entries[entry["keeps_like"]]
        kept = like["nvml_mib"] * MIB - int(like["memory_gib"] * GIB)
        memory = entry["nvml_mib"] * MIB - kept
        source = f"{source}; less what the driver keeps of the memory of the {like['name']}"
    return {
        **entry,
        "memory": memory,
        "nvml_memory": entry["nvml_mib"] * MIB if "nvml_mib" in entry else None,
        "capability": parse_capability(str(entry["capability"])),
        "bandwidth": int(entry["bandwidth_gbs"] * 1e9),
        "tensor_flops": entry["tensor_tflops"] * 1e12 if "tensor_tflops" in entry else None,
        "source": source,
    }
