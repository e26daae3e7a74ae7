"""Streams, events and random generators of the simulated GPU, as ``torch.cuda`` has them."""

from __future__ import annotations

import struct
import weakref
from typing import Any

import torch

from memcalc.script.patches import Patches
from memcalc.script.visible import number_of
from memcalc.trace import streams
from memcalc.trace.streams import current_device

_CUDA = 1
_PLACE = torch.device("cuda", 0)


class Stream(streams.Stream):
    """Stands for ``torch.cuda.Stream``."""

    def __init__(self, device: Any = None, priority: int = 0, **given: Any) -> None:
        super().__init__()
        self.stream_id = given.get("stream_id", self.stream_id)
        index = given.get("device_index", device)
        self.device_index = _index_of(index) if index is not None else current_device()
        self.device_type, self.priority = _CUDA, priority
        self.device = torch.device("cuda", self.device_index)
        self.cuda_stream = self.stream_id

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The least and the greatest that PyTorch takes (c10/cuda/CUDAStream.h)."""
        return 0, -3

    def record_event(self, event: Any = None) -> Any:
        """The event that was given, or a new one."""
        return event if event is not None else Event()

    def is_capturing(self) -> bool:
        """Nothing is captured in a graph."""
        return False

    def __eq__(self, other: object) -> bool:
        same = isinstance(other, Stream) and other.stream_id == self.stream_id
        return same and other.device_index == self.device_index  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"


def _index_of(device: Any) -> int:
    index = number_of(device)
    return current_device() if index is None else index


class Event(streams.Event):
    """Stands for ``torch.cuda.Event``."""

    device = _PLACE

    def elapsed_time(self, other: Any) -> float:
        """A millisecond: scripts divide by it."""
        return 1.0


def follow_packing(patches: Patches) -> None:
    """Hooks that pack what is saved may copy it on a stream of their own."""

    def hooks(original: Any, self: Any, pack: Any, unpack: Any) -> None:
        def packed(tensor: torch.Tensor) -> Any:
            with streams.packing():
                return pack(tensor)

        original(self, packed, unpack)

    patches.wrap(torch.autograd.graph.saved_tensors_hooks, "__init__", hooks)


class StreamContext:
    """As ``torch.cuda.StreamContext``; ``None`` changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        if self.stream is not None:
            self.stream.__enter__()

    def __exit__(self, *_: object) -> None:
        if self.stream is not None:
            self.stream.__exit__()


def set_stream(stream: Stream | None) -> None:
    """As ``torch.cuda.set_stream``."""
    if stream is not None:
        streams.switch(stream)


_Generator: Any = torch.Generator


_WHOLE = (1 << 64) - 1
_standing: weakref.WeakValueDictionary[int, CudaGenerator] = weakref.WeakValueDictionary()
"""The GPU's generators by those in host memory that stand for them: C++ hands on these alone."""


def generator_of(handed: Any) -> CudaGenerator | None:
    """The GPU's generator that another stands for; ``None``: it is the host's."""
    return _standing.get(handed._cdata)


def drawn_by(kwargs: dict[str, Any], device: str) -> dict[str, Any]:
    """Arguments of what draws on a device with a generator: the GPU's draws nothing here.

    Raises:
        RuntimeError: the generator is another device's (aten/src/ATen/core/Generator.h,
            ``check_generator``, 2.13).
    """
    own = "cpu" if generator_of(kwargs["generator"]) is None else "cuda"
    if own != device:
        raise RuntimeError(f"Expected a '{device}' device type for generator but found '{own}'")
    return {**kwargs, "generator": None} if device == "cuda" else kwargs


class CudaGenerator(_Generator):  # type: ignore[misc]
    """A generator of the simulated GPU: its seed, and how many draws that are followed it made.

    Source: aten/src/ATen/cuda/CUDAGeneratorImpl.cpp (2.13).
    """

    STATE = 16
    """Bytes of a CUDA generator's state: seed and offset."""
    STEP = 4
    """What a draw adds to the offset, which is always a multiple of it."""
    default_seed = 67280421310721
    """``default_rng_seed_val`` of GeneratorImpl.h; a GPU's own generators begin with any other."""

    def __new__(cls, device: Any = None) -> CudaGenerator:
        """A generator in host memory stands for it where C++ wants one."""
        made: CudaGenerator = super().__new__(cls, "cpu")
        made._seed = made.default_seed
        made._offset = 0
        made._place = torch.device("cuda", 0 if device is None else _index_of(device))
        _standing[made._cdata] = made
        return made

    @property
    def device(self) -> torch.device:
        """Where it says it is."""
        place: torch.device = self._place
        return place

    def drew(self) -> tuple[int, int]:
        """Go on behind a draw; returns seed and offset."""
        self._offset += self.STEP
        return self._seed, self._offset

    def manual_seed(self, seed: int) -> CudaGenerator:
        """Set the seed, and begin anew."""
        self._seed, self._offset = int(seed), 0
        return self

    def initial_seed(self) -> int:
        """The seed."""
        return self._seed

    def seed(self) -> int:
        """Draw a seed."""
        self.manual_seed(_Generator().seed())
        return self._seed

    def get_state(self) -> torch.Tensor:
        """Seed and offset, sixteen bytes on the host."""
        state = struct.pack("<QQ", self._seed & _WHOLE, self._offset)
        return torch.frombuffer(bytearray(state), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> CudaGenerator:
        """Go on from a state.

        Raises:
            RuntimeError: it is none of a CUDA generator.
        """
        held = bytes(state.tolist())
        if len(held) not in (self.STATE, self.STATE // 2):
            raise RuntimeError("RNG state is wrong size")
        self._seed, self._offset = struct.unpack("<QQ", held.ljust(self.STATE, b"\0"))
        return self

    def clone_state(self) -> CudaGenerator:
        """Another that draws the same from here on."""
        return CudaGenerator(self._place).set_state(self.get_state())

    graphsafe_get_state = clone_state

    def __reduce__(self) -> Any:
        """A copy draws the same from here on, on the same device."""
        return _placed_at, (str(self._place), self._seed, self._offset)

    def graphsafe_set_state(self, state: CudaGenerator) -> CudaGenerator:
        """Go on from where another is."""
        return self.set_state(state.get_state())

    def get_offset(self) -> int:
        """Of the next draw."""
        return self._offset

    def set_offset(self, offset: int) -> None:
        """Go on from an offset.

        Raises:
            RuntimeError: no draw begins there.
        """
        if offset % self.STEP:
            raise RuntimeError("offset must be a multiple of 4")
        self._offset = offset


def _placed_at(place: str, seed: int, offset: int) -> CudaGenerator:
    made = CudaGenerator(place).manual_seed(seed)
    made.set_offset(offset)
    return made


class _Kind(type(_Generator)):  # type: ignore[misc]
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, _Generator)


class Generator(_Generator, metaclass=_Kind):  # type: ignore[misc]
    """``torch.Generator``, also for the simulated GPU."""

    def __new__(cls, device: Any = "cpu") -> Any:
        """A generator of the device that is asked for."""
        if torch.device(device).type == "cuda":
            return CudaGenerator(device)
        return _Generator(device)
