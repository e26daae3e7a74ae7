"""Module paths for display, and the layers of a quantized base model by kind."""

from collections.abc import Iterable, Iterator

import msgspec

from memcalc.records.model import Inventory, Parameter

Pattern = tuple[str, ...]
"""A path's parts, with ``*`` for each index of a list."""


def cut(path: str, depth: int | None) -> tuple[Pattern, tuple[int, ...]]:
    """Split a module path into names with ``*`` for indices, and the indices.

    ``depth``: how many names to keep, indices not counted; None keeps all.
    """
    pattern: list[str] = []
    indices: list[int] = []
    names = 0
    for part in path.split(".") if path else ():
        if part.isdigit():
            pattern.append("*")
            indices.append(int(part))
            continue
        if depth is not None and names == depth:
            break
        names += 1
        pattern.append(part)
    return tuple(pattern), tuple(indices)


def write(pattern: Pattern, filled: Iterable[tuple[int, ...]]) -> str:
    """Write a module path pattern with its index ranges, such as ``h.[0-11].mlp``."""
    columns = iter(list(zip(*filled, strict=True)))
    return ".".join(_write_ranges(next(columns)) if part == "*" else part for part in pattern)


def _write_ranges(numbers: Iterable[int]) -> str:
    """Write indices as ranges such as ``[0-3,7]``, or one number alone."""
    ordered = sorted(set(numbers))
    if len(ordered) == 1:
        return str(ordered[0])
    spans: list[list[int]] = []
    for number in ordered:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    return "[" + ",".join(f"{a}-{b}" if a != b else str(a) for a, b in spans) + "]"


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor of one layer."""

    name: str
    """``weight``; of a constant its name in the checkpoint, such as ``absmax``."""
    dtype: str
    bytes: int


class LayerKind(msgspec.Struct, frozen=True, kw_only=True):
    """Weights of the same name and shape in all repetitions of a layer."""

    name: str
    """Of the module, such as ``model.layers.[0-31].mlp.up_proj``."""
    shape: tuple[int, ...]
    """Of the weight, before it was packed."""
    count: int
    tensors: tuple[Held, ...]
    """Of one of them: its weight, then its constants."""
    quantized: bool
    numel: int
    """Weights of one of them."""

    @property
    def per_weight(self) -> float:
        """Bytes per weight element, quantization constants included."""
        return sum(tensor.bytes for tensor in self.tensors) / max(1, self.numel)


def layers(inventory: Inventory) -> tuple[LayerKind, ...]:
    """Group a quantized model's layers by name pattern, shape and tensors, quantized ones first.

    Empty where nothing is quantized.
    """
    if not any(tensor.original is not None for tensor in inventory.tensors):
        return ()
    kinds: dict[
        tuple[Pattern, tuple[int, ...], tuple[Held, ...]], tuple[Parameter, list[tuple[int, ...]]]
    ] = {}
    for weight, constants in _pair_weights_and_constants(inventory):
        # peft's own names around the model's are left out.
        path = weight.name.removeprefix("base_model.model.").removesuffix(".weight")
        pattern, indices = cut(path.removesuffix(".base_layer"), None)
        tensors = (
            Held(name="weight", dtype=weight.dtype, bytes=weight.bytes),
            *(
                Held(name=one.name[len(weight.name) + 1 :], dtype=one.dtype, bytes=one.bytes)
                for one in constants
            ),
        )
        key = (pattern, weight.original or weight.shape, tensors)
        kinds.setdefault(key, (weight, []))[1].append(indices)
    listed = [
        LayerKind(
            name=write(pattern, filled),
            shape=shape,
            count=len(filled),
            tensors=tensors,
            quantized=weight.original is not None,
            numel=weight.numel,
        )
        for (pattern, shape, tensors), (weight, filled) in kinds.items()
    ]
    return tuple(sorted(listed, key=lambda kind: not kind.quantized))


def _pair_weights_and_constants(
    inventory: Inventory,
) -> Iterator[tuple[Parameter, list[Parameter]]]:
    """Yield each base weight with its quantization constants (LoRA and buffers left out)."""
    constants: dict[str, list[Parameter]] = {}
    base = [one for one in inventory.tensors if not one.buffer and "lora_" not in one.name]
    for tensor in base:
        if not tensor.constant:
            constants[tensor.name] = []
            continue
        owner = tensor.name
        while owner not in constants:
            owner = owner.rpartition(".")[0]
        constants[owner].append(tensor)
    for tensor in base:
        if not tensor.constant:
            yield tensor, constants[tensor.name]
