"""Sparse matrices in compressed rows and columns: made, copied, turned, multiplied."""

RECORDED = {
    "a copy": (41608, 41608),
    "cast": (35608, 35608),
    "of coordinates": (65608, 65608),
    "of a dense one": (53440, 2780),
    "its columns": (91781, 2780),
    "its coordinates": (43164, 1980),
    "of 32 bits": (0, 0),
    "back to coordinates": (48000, 48000),
    "in columns": (173608, 64000),
    "of 32 bits in columns": (122812, 38000),
    "dense": (1594808, 1397200),
    "a product": (112000, 56000),
    "with every other column": (75960, 28000),
    "with a vector": (4796, 2800),
    "its gradient": (173608, 39920),
    "turned": (173608, 39920),
    "from the right": (253448, 39920),
    "added": (56000, 56000),
    "scaled": (41608, 41608),
    "summed": (4, 4),
    "on the host": (48000, 0),
    "loaded": (101608, 101608),
}
"""Peak and what is left, in bytes: PyTorch 2.13 over the stand-in driver, whose cuSPARSE asks for
no workspace. Numbers of the host are known to both."""
SCRIPT = """
import torch

rows = torch.arange(3000) % 700
host = torch.sparse_coo_tensor(torch.stack((rows, torch.arange(3000) % 499)), torch.ones(3000))
host = host.coalesce()
x = torch.ones(499, 20, device="cuda", requires_grad=True)
taken = {}

def took(name, run):
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    out = run()
    after = torch.cuda.memory_stats()
    levels = (after[f"requested_bytes.all.{one}"] - before for one in ("peak", "current"))
    taken[name] = tuple(levels)
    return out

A = took("a copy", lambda: host.to_sparse_csr().cuda())
took("cast", lambda: A.half())
B = took("of coordinates", lambda: host.cuda().to_sparse_csr())
took("of a dense one", lambda: torch.eye(99).cuda().to_sparse_csr())
took("its columns", lambda: torch.eye(99).cuda().to_sparse_csc())
took("its coordinates", lambda: torch.eye(99).cuda().to_sparse())
parts = A.crow_indices().int(), A.col_indices().int(), A.values()
narrow = took("of 32 bits", lambda: torch.sparse_csr_tensor(*parts, (700, 499)))
took("back to coordinates", lambda: A.to_sparse())
took("in columns", lambda: A.to_sparse_csc())
took("of 32 bits in columns", lambda: narrow.to_sparse_csc())
took("dense", lambda: A.to_dense())
out = took("a product", lambda: A @ x)
took("with every other column", lambda: A @ x.detach()[:, ::2])
took("with a vector", lambda: A @ x.detach()[:, 0])
grad = torch.ones_like(out)
took("its gradient", lambda: torch.autograd.grad(out, x, grad))
took("turned", lambda: A.t() @ grad)
took("from the right", lambda: grad.t() @ A)
took("added", lambda: torch.addmm(out.detach(), A, x.detach()))
took("scaled", lambda: A * 2)
took("summed", lambda: A.sum())
took("on the host", lambda: (A.cpu(), B.to_sparse().cpu()))
assert A.cpu().layout is torch.sparse_csr and host.cuda().cpu().layout is torch.sparse_coo
torch.save({"A": A, "B": host.cuda()}, "sparse.pt")
took("loaded", lambda: torch.load("sparse.pt"))
assert taken == RECORDED, taken
"""


def test_what_is_compressed_takes_what_cuda_code_takes(run):
    found = run(SCRIPT.replace("RECORDED", repr(RECORDED)), gpu="t4", steps=0)
    assert found.ending.code == 0
    said = " ".join(found.traced.prediction.uncounted)
    assert "cuSPARSE" in said


def test_what_is_not_simulated_is_refused_in_a_sentence(run, capfd):
    found = run("import torch\na = torch.eye(3).to_sparse_csr().cuda()\na @ a", gpu="t4")
    assert found.ending.code != 0
    assert "the product of two sparse matrices" in capfd.readouterr().err
    found = run("import torch\ntorch.eye(4).to_sparse_bsr(2).cuda()", gpu="t4")
    assert found.ending.code != 0
    assert "in coordinates and in compressed rows" in capfd.readouterr().err
