"""A graph convolution with a sparse adjacency: made on the host, normalized, moved."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
N, E = 2000, 12000
src, dst = torch.randint(0, N, (E,)), torch.randint(0, N, (E,))
i = torch.cat([torch.stack((src, dst)), torch.stack((dst, src)), torch.arange(N).repeat(2, 1)], 1)
A = torch.sparse_coo_tensor(i, torch.ones(i.shape[1]), (N, N)).coalesce()
deg = torch.sparse.sum(A, 1).to_dense().pow(-0.5)
A = torch.sparse_coo_tensor(
    A.indices(), A.values() * deg[A.indices()[0]] * deg[A.indices()[1]], (N, N)
).coalesce()
print(A._nnz())
A = A.cuda()
X = torch.randn(N, 300).cuda()
y = torch.randint(0, 7, (N,)).cuda()
tr = torch.zeros(N, dtype=torch.bool)
tr[:500] = True
tr = tr.cuda()


class GCN(nn.Module):
    def __init__(s):
        super().__init__()
        s.l1, s.l2 = nn.Linear(300, 64), nn.Linear(64, 7)

    def forward(s, x, a):
        return torch.spmm(a, s.l2(F.dropout(F.relu(torch.sparse.mm(a, s.l1(x))), 0.5, s.training)))


m = GCN().cuda()
opt = torch.optim.Adam(m.parameters(), 0.01, weight_decay=5e-4)
for ep in range(4):
    m.train()
    opt.zero_grad()
    o = F.log_softmax(m(X, A), 1)
    L = F.nll_loss(o[tr], y[tr])
    L.backward()
    opt.step()
    m.eval()
    with torch.no_grad():
        acc = (m(X, A).argmax(1)[~tr] == y[~tr]).float().mean().item()
