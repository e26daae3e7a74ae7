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
    """The most threads that a multiprocessor holds at once."""
    shared_memory: int
    """Bytes per multiprocessor."""
    shared_memory_of_block: int
    """The most bytes that one block may request."""
    tile_bytes: int = 0
    """Matrix sizes should be multiples of these bytes for Tensor Cores; 0 without Tensor Cores."""
    bf16: bool = False
    """True if it computes in bf16; otherwise PyTorch emulates bf16."""
    tf32: bool = False


@functools.cache
def architectures() -> dict[tuple[int, int], Architecture]:
    """Return all architectures by compute capability."""

    def make_table(data: dict[str, Any]) -> dict[tuple[int, int], Architecture]:
        return {
            parse_capability(capability): decode(Architecture, _convert_sizes(entry))
            for entry in data["architecture"]
            for capability in entry["capabilities"]
        }

    return shipped.read("compute_capabilities.toml", make_table)


def _convert_sizes(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a row of compute_capabilities.toml with its KiB converted to bytes."""
    shared, of_block = entry["shared_kib"] * KIB, entry["shared_kib_of_block"] * KIB
    return {**entry, "shared_memory": shared, "shared_memory_of_block": of_block}


def parse_capability(text: str) -> tuple[int, int]:
    """Parse a version such as ``9.0`` into (major, minor)."""
    major, minor = text.split(".")
    return int(major), int(minor)


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a GPU and of PyTorch that decide which kernels run."""

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
_OTHER_MAKERS = re.compile(
    r"amd\b|radeon|instinct|\brx ?\d{4}|\bmi ?\d{2,3}[a-z]?\b|\bgfx\d|intel|\barc\b|gaudi|apple|"
    r"\bmps\b|\bm[1-9]( ?(pro|max|ultra))?\b|google|\btpu\b|trainium|inferentia|ascend|\bnpu\b"
)
_TOTAL_TOLERANCE = 0.05
"""Share by which a read total may differ from the one on record, because drivers reserve different
amounts. Sizes of one name differ by more than a tenth."""


class Gpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU model. Sizes in bytes."""

    name: str
    driver_name: str
    """The driver's name: ``torch.cuda.get_device_name``, nvidia-smi."""
    memory: int
    """The total that CUDA offers a process (``cudaMemGetInfo``)."""
    nvml_memory: int | None = None
    """The total that NVML and nvidia-smi report."""
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
    """The name of a box of several such GPUs, if other cards have that name too."""
    source: str
    """The source of the sizes."""


@functools.cache
def table() -> tuple[Gpu, ...]:
    """Read the catalog of GPUs (configs/gpus.toml), in the file's order."""

    def make_table(data: dict[str, Any]) -> tuple[Gpu, ...]:
        entries = {entry["name"]: entry for entry in data["gpu"]}
        return decode(tuple[Gpu, ...], [_convert_row(entry, entries) for entry in entries.values()])

    return shipped.read("gpus.toml", make_table)


class NamedGpu(msgspec.Struct, frozen=True, kw_only=True):
    """The GPU that a name means."""

    gpu: Gpu
    count: int | None = None
    """Number of GPUs if the name is that of a cloud machine, else None."""
    why: str = ""
    """The reason for this choice, as a clause; empty if only this card has the name."""


@functools.cache
def resolve(name: str) -> NamedGpu:
    """Find the GPU a person's text names: a card, the smallest of several, or a cloud machine's.

    Case, spaces, dashes, the maker's name and a redundant size make no difference.

    Raises:
        UsageError: there is no such GPU; the message lists similar names.
    """
    plain, size = _split_name(name)
    found = _find_cards(plain, size)
    if len(found) == 1:
        return NamedGpu(gpu=next(iter(found.values())))
    if found:
        least = min(found.values(), key=lambda gpu: gpu.memory)
        why = f"the smallest of {', '.join(found)}; name another to change that"
        return NamedGpu(gpu=least, why=why)
    for gpu in table():
        if gpu.boxed_as and _split_name(gpu.boxed_as)[0] == plain and size in (None, gpu.sold_as):
            return NamedGpu(
                gpu=gpu, why="the form most clouds rent; name another card to change that"
            )
    machine = _read_machines().get(name.strip().lower())
    if machine is None:
        raise _unknown_gpu(name, plain, size)
    return machine


@functools.cache
def find(name: str, total: int | None = None) -> Gpu:
    """Return the GPU with a driver's or a person's name for it.

    Args:
        name: such as ``RTX 4090``, ``4090`` or ``NVIDIA A100-SXM4-80GB``.
        total: bytes of the card, if known; they decide between sizes of one name.

    Raises:
        UsageError: there is no such GPU, or several; the message lists them.
    """
    if total is None:
        return resolve(name).gpu
    found = _find_cards(*_split_name(name), total)
    if len(found) == 1:
        return next(iter(found.values()))
    if found:
        raise UsageError(f"There are several GPUs called {name!r}: name one of {', '.join(found)}.")
    raise _unknown_gpu(name, *_split_name(name))


def list_rental_gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that most clouds rent, the least memory first."""
    names = shipped.read("machines.toml", lambda data: tuple(data["rented"]))
    return tuple(sorted(map(find, names), key=lambda gpu: gpu.memory))


class Prices(msgspec.Struct, frozen=True, kw_only=True):
    """Hourly prices of one GPU, to the order of magnitude."""

    date: str
    source: str
    of: dict[str, float]
    """US dollars, by the GPU's name in the catalog."""


@functools.cache
def prices() -> Prices:
    """Read the dated table of GPU prices per hour."""
    return shipped.read("machines.toml", lambda data: decode(Prices, data["prices"]))


@functools.cache
def _read_machines() -> dict[str, NamedGpu]:
    """Return the GPUs of cloud machines, by the machines' names in lower case."""
    cards = {gpu.name: gpu for gpu in table()}

    def make_table(data: dict[str, Any]) -> dict[str, NamedGpu]:
        return {
            name.lower(): NamedGpu(
                gpu=cards[one["gpu"]],
                count=one.get("count", 1),
                why=f"says {one['source'].partition(' (')[0]}",
            )
            for one in data["machine"]
            for name in one["names"]
        }

    return shipped.read("machines.toml", make_table)


def _find_cards(plain: str, size: int | None, total: int | None = None) -> dict[str, Gpu]:
    """Return GPUs by full name that a plain name matches; a size or total narrows them."""
    by_size = _index_by_name().get(plain, {})
    exact = by_size.get(size)
    if exact is not None and (total is None or _matches_total(exact, total)):
        return {exact.name: exact}
    found = {gpu.name: gpu for gpu in by_size.values() if size in (None, gpu.sold_as)}
    if total is not None:
        found = {key: gpu for key, gpu in found.items() if _matches_total(gpu, total)} or found
    return found if exact is None or len(found) == 1 else {exact.name: exact}


def _unknown_gpu(name: str, plain: str, size: int | None) -> UsageError:
    """Return the error for a name that is no known GPU, with the nearest names."""
    if not plain and size is not None:
        cards = ", ".join(gpu.name for gpu in list_rental_gpus() if gpu.sold_as == size)
        one = f"name one of {cards}, or " if cards else ""
        return UsageError(
            f"{name!r} is a size, not a GPU: {one}type memcalc fit MODEL --memory '{size} GB'."
        )
    if _OTHER_MAKERS.search(name.lower()):
        return UsageError(
            f"{name!r} is not supported: memcalc knows NVIDIA GPUs; see memcalc list gpus."
        )
    if name.isdecimal() and len(name) < 3:
        return UsageError(f"{name!r} is no GPU: name its kind, such as t4 or 4090, not its number.")
    wanted = _SERIES.sub("", plain)
    longer = re.compile(re.escape(wanted) + r"($|\D)")
    cores = {gpu.name: _SERIES.sub("", _split_name(gpu.name)[0]) for gpu in table()}
    begun = [name for name, core in cores.items() if wanted and longer.match(core)]
    if begun:
        return UsageError(f"{name!r} alone is no GPU: name one of {', '.join(begun)}.")
    return unknown("GPU", name, [gpu.name for gpu in table()], hint="see memcalc list gpus.")


def _matches_total(gpu: Gpu, total: int) -> bool:
    return abs((gpu.nvml_memory or gpu.memory) - total) <= _TOTAL_TOLERANCE * total


@functools.cache
def _index_by_name() -> dict[str, dict[int | None, Gpu]]:
    """Return the GPUs by plain name, then by the gigabytes in the name."""
    found: dict[str, dict[int | None, Gpu]] = defaultdict(dict)
    for gpu in table():
        for name in (gpu.name, *gpu.aliases):
            plain, size = _split_name(name)
            spelled = [(plain, size), (_EMPTY.sub("", name.lower()), None)]
            # A number is enough if only one card has it.
            spelled += [
                (re.sub(r"^[rg]tx(?=\d)", "", key), gigabytes) for key, gigabytes in spelled
            ]
            for key, gigabytes in spelled:
                if found[key].setdefault(gigabytes, gpu) is not gpu:
                    raise ValueError(f"two GPUs are called {name}")
    return found


def _split_name(name: str) -> tuple[str, int | None]:
    """Split a GPU name into its plain letters and digits, and the gigabytes in it (or None)."""
    text = name.lower()
    for word, replacement in _WORDS:
        text = re.sub(word, replacement, text)
    size = _SIZE.search(text)
    if size is not None:
        text = text[: size.start()] + " " + text[size.end() :]
    return _EMPTY.sub("", text), int(size[1]) if size is not None else None


def _convert_row(entry: dict[str, Any], entries: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Convert the sizes of a row of gpus.toml to whole bytes."""
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
