"""What numbers take that become tensors of the GPU, and what wrappers of tensors do themselves."""

NUMBERS = """
import torch
row, whole = torch.ones(64, device="cuda"), torch.arange(64, device="cuda")
half = row.half()

def blocks(run):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    made = run()
    return (torch.cuda.max_memory_allocated() - before) // 512

assert blocks(lambda: 10000**row) == blocks(lambda: 2**whole) == blocks(lambda: 2.0**half) == 2
assert blocks(lambda: row**2) == blocks(lambda: 1**row) == blocks(lambda: row**row) == 1
assert blocks(lambda: torch.searchsorted(row, 0.5)) == blocks(lambda: torch.bucketize(2, row)) == 3
assert blocks(lambda: torch.searchsorted(whole, 2)) == 2
assert blocks(lambda: torch.searchsorted(row, row)) == 1
"""
"""Blocks that PyTorch's CUDA build took over the stand-in driver (2.13)."""


def test_a_number_that_becomes_a_tensor_takes_a_block(run):
    assert run(NUMBERS).ending.code == 0


WRAPPER = """
import torch

class Halved(torch.Tensor):
    @staticmethod
    def __new__(cls, held):
        return torch.Tensor._make_wrapper_subclass(
            cls, held.shape, dtype=torch.float32, device=held.device
        )
    def __init__(self, held):
        self.held = held
    def __tensor_flatten__(self):
        return ["held"], None
    @classmethod
    def __tensor_unflatten__(cls, inner, meta, size, stride):
        return cls(inner["held"])
    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        assert func is torch.ops.aten.copy_.default, func
        target, source = args
        target.held.copy_((source.to(target.device) * 3).half())
        return target

weight = Halved(torch.zeros(1 << 20, device="cuda", dtype=torch.float16))
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_allocated()
weight.copy_(torch.ones(1 << 20))
assert torch.cuda.memory_allocated() == before
assert torch.cuda.max_memory_allocated() - before == 8 << 20
"""


def test_a_wrapper_of_tensors_copies_from_the_host_by_its_own_code(run):
    assert run(WRAPPER).ending.code == 0
