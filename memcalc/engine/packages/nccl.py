"""PyTorch's process groups over NCCL: torch.distributed.ProcessGroupNCCL."""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d


def release_sent_tensors() -> None:
    """Wait until no group holds a tensor of a collective that is done.

    A thread of each group looks for them every 100 ms (ProcessGroupNCCL.cpp, 2.14): over the stub
    driver a program would be ahead of it, and find more in memory in one run than in another.
    """
    torch.cuda.synchronize()
    cuda = torch.device("cuda")
    of_nccl: Any = dist.ProcessGroupNCCL
    for group in [*distributed_c10d._world.pg_map]:
        backend = group._get_backend(cuda) if cuda in group._device_types else None
        if isinstance(backend, of_nccl):
            of_nccl._wait_for_pending_works(backend)
