"""How the kernel of a convolution moves over an image."""

from __future__ import annotations

from math import prod
from typing import Any

import torch

Shape = tuple[int, ...]


class Window:
    """How a kernel moves over an image. Shapes: one number for each dimension of the image."""

    def __init__(self, weight: torch.Tensor, options: Any) -> None:
        stride, padding, dilation, transposed, more, _ = options
        self.kernel: Shape = tuple(weight.shape[2:])
        self.stride, self.padding, self.dilation, self.more = (
            self._wide(values) for values in (stride, padding, dilation, more)
        )
        self.transposed = bool(transposed)
        self.dilated = any(step > 1 for step in self.dilation) or len(self.kernel) == 3
        still = (self.stride, self.padding) == ((1,) * len(self.kernel), (0,) * len(self.kernel))
        self.moves = set(self.kernel) != {1} or not still
        """Columns are needed: a pixel is more than itself."""

    def _wide(self, values: Any) -> Shape:
        return tuple(values) * (len(self.kernel) if len(values) == 1 else 1)

    def out(self, image: Shape) -> Shape:
        """Size of the image that comes out."""
        sizes = zip(
            image, self.kernel, self.stride, self.padding, self.dilation, self.more, strict=True
        )
        if self.transposed:
            return tuple((n - 1) * s - 2 * p + d * (k - 1) + m + 1 for n, k, s, p, d, m in sizes)
        return tuple((n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d, _ in sizes)

    def columns(self, weight: torch.Tensor, inner: Shape, outer: Shape) -> Shape:
        """Of one sample: weights of a pixel, and pixels."""
        if self.transposed:
            return weight.shape[1] * prod(self.kernel), prod(inner)
        return weight.shape[1] * prod(self.kernel), prod(outer)


def bias_of(grad: torch.Tensor) -> torch.Tensor:
    """The gradient of a bias, shape (C,), of that of the result (N, C, ...)."""
    return grad.sum((0, *range(2, grad.dim())))
