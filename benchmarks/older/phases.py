"""Prints what PyTorch's allocator says of each part of a script."""

import torch


def mark(name):
    """What is asked for now, and the peaks since the last mark."""
    stats = torch.cuda.memory_stats()
    keys = "requested_bytes.all.current", "allocated_bytes.all.peak", "reserved_bytes.all.peak"
    print("phase", name, *(stats[key] for key in keys), flush=True)
    torch.cuda.reset_peak_memory_stats()


def warm_up():
    """Let both threads take their workspaces."""
    weight = torch.zeros(8, 8, device="cuda", requires_grad=True)
    (weight @ weight).sum().backward()
