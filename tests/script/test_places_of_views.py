"""Tables are looked up by columns of indices, views written to in places: as over the driver."""

WRITES = """
import torch
import torch.nn.functional as F
def taken(work):
    before = torch.cuda.memory_stats()["requested_bytes.all.allocated"]
    work()
    return torch.cuda.memory_stats()["requested_bytes.all.allocated"] - before
table, boxes = torch.ones(900, 64, device="cuda"), torch.ones(4, 48, 4, dtype=torch.long).cuda()
rows = 4 * 48 * 64 * 4
found = [taken(lambda: F.embedding(at, table)) for at in (boxes[..., 0], boxes[..., 0].t())]
assert found == [rows, rows + 4 * 48 * 8], found

layer, x = torch.nn.Linear(64, 64).cuda(), torch.ones(4, 100, 64, device="cuda")
places = torch.arange(2, device="cuda")
layer(x).sum().backward()
def once(put):
    hidden = layer(x)
    put(hidden)
    return taken(hidden.mean().backward)
whole = 4 * 100 * 64 * 4
def filled(hidden): hidden.masked_fill_(torch.zeros(4, 100, 1, dtype=torch.bool).cuda(), 0.0)
def put(hidden): hidden[:, places] = 0.0
assert once(put) - once(filled) == ADDED, once(put) - once(filled)
"""
ADDED = 4
"""Bytes that places take beyond a mask; PyTorch 2.13 over the stand-in driver."""


def test_they_take_what_they_take(run):
    assert run(WRITES.replace("ADDED", str(ADDED)), gpu="t4", steps=0).ending.code == 0
