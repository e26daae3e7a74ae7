"""Tensors lie where the allocator's model puts them: scripts tell them apart by that."""

SCRIPT = """
import torch

first = torch.empty(1 << 20, device="cuda")
there = first.data_ptr()
assert there % 512 == 0
assert first[4:].data_ptr() == there + 16
assert first.untyped_storage().data_ptr() == first[9:].untyped_storage().data_ptr() == there
del first
again = torch.empty(1 << 20, device="cuda")
assert again.data_ptr() == there
assert torch.empty(1 << 20, device="cuda").data_ptr() == there + again.nbytes
none = torch.empty(0, device="cuda")
assert none.data_ptr() == none.untyped_storage().data_ptr() == 0
"""


def test_what_was_freed_makes_room_for_others(run):
    assert run(SCRIPT, gpu="t4", steps=0).ending.code == 0


SEVERAL = """
import torch

first, second = (torch.empty(4, device=f"cuda:{index}") for index in range(2))
assert first.data_ptr() != second.data_ptr()
"""


def test_gpus_share_one_space_of_addresses(run):
    assert run(SEVERAL, gpu="t4", devices=2, steps=0).ending.code == 0
