"""Tensors that take other memory take the new before they let go of the old, as on a GPU."""

# Bytes that each takes at most over the stand-in driver.
TAKEN = {
    "grown": 12_288 + 36_352,
    "as another": 12_288 + 2 * 36_352,
    "smaller": 12_288,
    "storage": 12_288 + 4_096,
    "out": 512 + 4_096,
    "given back": 12_288,
}


def test_a_tensor_takes_other_memory(peaks):
    script = """
import torch
made = lambda count: torch.empty(count, device="cuda")
x = made(1000)
def given_back(x):
    x.untyped_storage().resize_(0)
    x.record_stream(torch.cuda.Stream())
CASES = {
    "grown": lambda: made(3000).resize_(9000),
    "as another": lambda: made(3000).resize_as_(made(9000)),
    "smaller": lambda: made(3000).resize_(90),
    "storage": lambda: made(3000).untyped_storage().resize_(4000),
    "out": lambda: torch.add(x, x, out=made(5)),
    "given back": lambda: given_back(made(3000)),
}
LEAVES = []
"""
    assert peaks(script, gpu="t4") == TAKEN
