"""Reads what NCCL's process group takes to send lists of tensors: it lays them in one.

Source: torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp, ``allgather`` and ``reduce_scatter``
(``newLikeFlat``, 2.13). Tensors of several sizes are sent one by one.
"""

from __future__ import annotations

import torch

from memcalc.kernels.formulas import KernelCall
from memcalc.kernels.scratch import nested
from memcalc.trace.scratch.shapes import Reader, bytes_of, fixed


def _flat(lists: list[list[torch.Tensor]]) -> KernelCall | None:
    sizes = {tuple(tensor.shape) for tensors in lists for tensor in tensors}
    if len(sizes) != 1:
        return None
    taken = (sum(bytes_of(tensor) for tensor in one) for one in lists)
    return fixed(before=nested(*taken))


READERS: dict[str, Reader] = {
    "c10d::allgather_": lambda args, out: _flat(args[0]),
    "c10d::reduce_scatter_": lambda args, out: _flat(args[1]),
}
