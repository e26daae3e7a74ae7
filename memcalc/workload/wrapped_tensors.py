"""The parts of wrapper tensors, such as torchao's and DTensor."""

from collections.abc import Iterator

import torch


def parts(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the inner tensors of a tensor subclass by name; empty for a plain tensor."""
    flatten = getattr(tensor, "__tensor_flatten__", None)
    if flatten is None:
        return {}
    # A DTensor names its mesh among its parts.
    found = {name: getattr(tensor, name) for name in flatten()[0]}
    return {name: part for name, part in found.items() if isinstance(part, torch.Tensor)}


def plain(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Yield the tensors that own memory: the inner ones of a subclass or sparse tensor."""
    inside = parts(tensor)
    for part in inside.values():
        yield from plain(part)
    if inside:
        return
    if tensor.layout is torch.sparse_coo:
        yield from (tensor._indices(), tensor._values())
    elif tensor.layout is torch.strided:
        yield tensor
