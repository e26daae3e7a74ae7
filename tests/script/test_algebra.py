"""Linear algebra whose shapes only CUDA's code knows, and sorting of what was chosen."""

import pytest

ORTHOGONAL = """
import torch
from torch.nn.utils.parametrizations import orthogonal
layer = orthogonal(torch.nn.Linear(96, 64).cuda(), orthogonal_map="{how}")
optimizer = torch.optim.Adam(layer.parameters())
for _ in range(2):
    layer(torch.ones(8, 96, device="cuda")).sum().backward()
    optimizer.step()
assert layer.weight.shape == (64, 96)
"""


@pytest.mark.parametrize(
    "how",
    [
        "householder",
        *(pytest.param(how, marks=pytest.mark.nightly) for how in ("matrix_exp", "cayley")),
    ],
)
def test_an_orthogonal_layer_is_made_and_trained(run, how):
    assert run(ORTHOGONAL.format(how=how), gpu="t4").ending.code == 0


LARGEST = """
import torch
x = torch.randn(3, 18432, device="cuda")
torch.cuda.reset_peak_memory_stats()
before = torch.cuda.memory_stats()["requested_bytes.all.current"]
chosen = torch.topk(x, {count}, sorted={ordered})
taken = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
assert taken == {taken}, taken
"""


@pytest.mark.parametrize(
    ("count", "ordered", "taken"), [(5530, True, 942183), (5530, False, 199080)]
)
def test_the_largest_of_many_are_sorted_as_a_whole(run, count, ordered, taken):
    """As PyTorch 2.13 takes over the stand-in driver."""
    text = LARGEST.format(count=count, ordered=ordered, taken=taken)
    assert run(text, gpu="H100 SXM").ending.code == 0


TAKEN = """
import torch
from torch import linalg
tall, several = torch.ones(256, 64, device="cuda"), torch.ones(4, 600, 600, device="cuda")
square, right = torch.ones(128, 128, device="cuda"), torch.ones(128, 10, device="cuda")
ones = {
    "svd": lambda: linalg.svd(tall, full_matrices=False), "r": lambda: linalg.qr(tall, mode="r"),
    "singular values": lambda: linalg.svdvals(tall), "eigh": lambda: linalg.eigh(square),
    "inverse": lambda: linalg.inv(square), "inverses": lambda: linalg.inv(several),
    "solve": lambda: linalg.solve(square, right), "lu": lambda: linalg.lu(square),
    "slogdet": lambda: linalg.slogdet(square), "cholesky": lambda: linalg.cholesky(square),
    "cholesky solve": lambda: torch.cholesky_solve(right, square),
    "cholesky inverse": lambda: torch.cholesky_inverse(square),
}
linalg.inv(square)
for name, wanted in TAKEN.items():
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    ones[name]()
    taken = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    assert taken == wanted, (name, taken)
"""
OF_ALGEBRA = {
    "svd": 147716,
    "r": 82180,
    "singular values": 147716,
    "eigh": 66054,
    "inverse": 200196,
    "inverses": 17332816,
    "solve": 79364,
    "lu": 262660,
    "slogdet": 67732,
    "cholesky": 65542,
    "cholesky solve": 70660,
    "cholesky inverse": 196612,
}
"""Bytes that PyTorch 2.13 takes over the stand-in driver, which has no workspaces."""


def test_linear_algebra_takes_the_copies_that_pytorch_makes(run):
    text = TAKEN.replace("TAKEN", repr(OF_ALGEBRA))
    assert run(text, gpu="H100 SXM").ending.code == 0


GRADIENTS = {"cholesky": 802304, "lu": 1122816, "svd": 1444352, "a product with itself": 481792}
"""Bytes over the stand-in driver of an A100 (2.13)."""
OF_FACTORS = """
import torch
from torch import linalg
matrix = torch.ones(200, 200, device="cuda", requires_grad=True)
CASES = {
    "cholesky": lambda: linalg.cholesky_ex(matrix)[0].sum().backward(),
    "lu": lambda: sum(part.sum() for part in linalg.lu(matrix)).backward(),
    "svd": lambda: sum(part.sum() for part in linalg.svd(matrix)).backward(),
    "a product with itself": lambda: (matrix @ matrix).sum().backward(),
}
LEAVES = (matrix,)
"""


@pytest.mark.pinned
def test_formulas_of_gradients_add_to_new_memory(peaks):
    """The engine alone adds in place, where gradients of several nodes meet."""
    assert peaks(OF_FACTORS, gpu="A100-80GB") == GRADIENTS


BY_CUBLAS = {
    "inverse": 33754628,
    "inverses": 33606480,
    "solve": 33633796,
    "solve for a vector": 67080,
    "several solved": 33606480,
    "by factors": 33567744,
    "triangle": 33559552,
    "triangles": 33570880,
    "qr": 131588,
    "several qr": 33587776,
    "cholesky solve": 33570880,
    "cholesky inverse": 33587264,
    "determinant": 67732,
    "determinants": 33572688,
    "svd": 197124,
    "pseudo-inverse": 33817624,
}
"""Bytes over the stand-in driver of an H100 (2.13) where no product has run: cuBLAS' workspace is
32 MiB, which cuSOLVER's own ways leave alone."""
WITHOUT_A_PRODUCT = """
import torch
from torch import linalg
one, few = torch.ones(128, 128, device="cuda"), torch.ones(4, 32, 32, device="cuda")
right = torch.ones(128, 10, device="cuda")
factors = linalg.lu_factor(one)
ones = {
    "inverse": lambda: linalg.inv(one), "inverses": lambda: linalg.inv(few),
    "solve": lambda: linalg.solve(one, right),
    "solve for a vector": lambda: linalg.solve(one, one[0]),
    "several solved": lambda: linalg.solve(few, few),
    "by factors": lambda: linalg.lu_solve(*factors, right),
    "triangle": lambda: linalg.solve_triangular(one, right, upper=False),
    "triangles": lambda: linalg.solve_triangular(few, few, upper=True),
    "qr": lambda: linalg.qr(one), "several qr": lambda: linalg.qr(few),
    "cholesky solve": lambda: torch.cholesky_solve(few, few),
    "cholesky inverse": lambda: torch.cholesky_inverse(few),
    "determinant": lambda: linalg.det(one), "determinants": lambda: linalg.det(few),
    "svd": lambda: linalg.svd(one), "pseudo-inverse": lambda: linalg.pinv(one),
}
for name, wanted in TAKEN.items():
    torch._C._cuda_clearCublasWorkspaces()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    torch.cuda.reset_peak_memory_stats()
    ones[name]()
    taken = torch.cuda.memory_stats()["requested_bytes.all.peak"] - before
    assert taken == wanted, (name, taken)
"""


def test_linear_algebra_takes_the_workspace_of_cublas(run):
    text = WITHOUT_A_PRODUCT.replace("TAKEN", repr(BY_CUBLAS))
    assert run(text, gpu="H100 SXM").ending.code == 0
