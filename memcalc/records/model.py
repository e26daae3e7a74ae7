"""A model's tensors and its optimizer state, each storage once."""

from enum import StrEnum
from math import prod

import msgspec

DTYPE_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "complex64": 8,
    "complex128": 16,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}


class Parameter(msgspec.Struct, frozen=True, kw_only=True):
    """A parameter or buffer of the model; tied ones are listed once, under the first name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool = True
    module: str = ""
    """Class name of the module that owns it, such as ``Embedding``."""
    buffer: bool = False
    original: tuple[int, ...] | None = None
    """Shape before it was quantized and packed; ``None``: it is not quantized."""
    constant: bool = False
    """A scale or code of a quantized weight, whose name its own begins with; no weight itself."""

    @property
    def numel(self) -> int:
        """Number of elements, of a quantized weight before it was packed."""
        return prod(self.shape if self.original is None else self.original)

    @property
    def bytes(self) -> int:
        """The bytes of the storage, unrounded."""
        return prod(self.shape) * DTYPE_BYTES[self.dtype]


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """Every parameter and buffer of a model, each storage once."""

    model: str
    task: str
    head: str
    """Class that was built, such as ``DistilBertForSequenceClassification``."""
    tensors: tuple[Parameter, ...]
    config: str | None = None
    """Digest of the config.json that it was built from; ``None``: a user's code built it."""

    @property
    def parameters(self) -> tuple[Parameter, ...]:
        """All tensors but buffers and the constants of quantized weights."""
        return tuple(one for one in self.tensors if not one.buffer and not one.constant)

    @property
    def trainable(self) -> tuple[Parameter, ...]:
        """The parameters that receive gradients."""
        return tuple(tensor for tensor in self.tensors if tensor.trainable and not tensor.buffer)

    @property
    def numel(self) -> int:
        """Number of parameters, tied ones once."""
        return sum(parameter.numel for parameter in self.parameters)

    @property
    def trainable_numel(self) -> int:
        """Number of parameters that receive gradients."""
        return sum(parameter.numel for parameter in self.trainable)


class Place(StrEnum):
    """The place of a piece of optimizer state."""

    DEVICE = "device"
    HOST = "host"
    MANAGED = "managed"
    """CUDA managed memory: pages move between host and device, outside PyTorch's allocator."""


class StateTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of an optimizer, for one parameter or (``parameter`` empty) shared by all."""

    parameter: str
    name: str
    dtype: str
    numel: int
    place: Place = Place.DEVICE

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"{self.dtype!r} is no dtype that is known")

    @property
    def bytes(self) -> int:
        """The bytes of the storage, unrounded."""
        return self.numel * DTYPE_BYTES[self.dtype]


class OptimizerState(msgspec.Struct, frozen=True, kw_only=True):
    """All state of one optimizer over one inventory, each storage once."""

    optimizer: str
    implementation: str
    """Full name of the class and the version the layout was checked against."""
    tensors: tuple[StateTensor, ...]
    notes: tuple[str, ...] = ()
    """What the user should know, such as which tensors stay in 32 bit and why."""

    def total(self, place: Place) -> int:
        """Return the bytes of state in one place: device, host or managed memory."""
        return sum(tensor.bytes for tensor in self.tensors if tensor.place is place)
