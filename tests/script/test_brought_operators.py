"""Operators that a script brings: kernels in Python run as they are, compiled ones are named."""

SCRIPT = """
import torch
NUMBERS = 1 << 20

@torch.library.custom_op("mine::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    beside = x.new_empty(NUMBERS)
    return x * 2 + beside[:1000]

if {fake}:
    twice.register_fake(lambda x: torch.empty_like(x))
twice.register_autograd(lambda ctx, grad: grad * 2)

library = torch.library.Library("theirs", "DEF")
library.define("add_all(Tensor(a!) x) -> ()")

@torch.library.impl(library, "add_all", "CUDA")
def add_all(x):
    x.add_(x.new_ones(2 * NUMBERS).sum())

def peak(run):
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run()
    return torch.cuda.max_memory_allocated() - before

x = torch.zeros(1000, device="cuda", requires_grad=True)
size, row = 4 * NUMBERS, 4096
assert peak(lambda: twice(x)) == size + 2 * row, peak(lambda: twice(x))
twice(x).sum().backward()
assert x.grad.shape == x.shape
with torch.no_grad():
    assert 2 * size < peak(lambda: torch.ops.theirs.add_all(x)) < 2 * size + 2 * row
"""
COMPILED = """
import torch
library = torch.library.Library("compiled", "DEF")
library.define("twice(Tensor x) -> Tensor")
torch.library.register_fake("compiled::twice", lambda x: torch.empty_like(x))
x = torch.zeros(1000, device="cuda")
assert torch.ops.compiled.twice(x).shape == x.shape
"""


def test_their_kernels_run(run):
    for fake in (True, False):
        assert run(SCRIPT.replace("{fake}", str(fake))).ending.code == 0


def test_what_a_compiled_kernel_takes_is_said_to_be_left_out(run):
    found = run(COMPILED)
    assert found.ending.code == 0
    assert any("compiled kernels of compiled" in said for said in found.traced.prediction.uncounted)


BUILDS = """
import torch
from torch.utils import cpp_extension
try:
    cpp_extension.load(name="fused_act", sources=["missing.cu"], build_directory=".")
except Exception:
    pass
torch.nn.Linear(8, 8).cuda()(torch.ones(2, 8).cuda()).sum().backward()
"""


def test_an_extension_that_is_not_built_is_named(run):
    said = run(BUILDS).traced.prediction.assumptions
    assert any("extension fused_act is not built" in one for one in said)
