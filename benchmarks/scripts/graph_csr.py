"""GraphSAGE on a compressed adjacency (CSR) that is a buffer of the model, saved and loaded."""

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.manual_seed(0)
N, E = 2000, 16000
rows, columns = torch.randint(0, N, (E,)), torch.randint(0, N, (E,))
A = torch.sparse_coo_tensor(torch.stack((rows, columns)), torch.ones(E), (N, N)).coalesce()
deg = torch.sparse.sum(A, 1).to_dense().clamp(min=1)
A = torch.sparse_coo_tensor(A.indices(), A.values() / deg[A.indices()[0]], (N, N))
A = A.coalesce().to_sparse_csr()


class SAGE(nn.Module):
    def __init__(self, i, h, o):
        super().__init__()
        self.register_buffer("A", A)
        self.first, self.second = nn.Linear(2 * i, h), nn.Linear(2 * h, o)

    def forward(self, x):
        x = F.relu(self.first(torch.cat([x, self.A @ x], 1)))
        x = F.dropout(x, 0.5, self.training)
        return self.second(torch.cat([x, torch.sparse.mm(self.A, x)], 1))


m = SAGE(300, 128, 7).cuda()
x, y = torch.randn(N, 300).cuda(), torch.randint(0, 7, (N,)).cuda()
opt = torch.optim.Adam(m.parameters(), 1e-2)
for epoch in range(3):
    m.train()
    loss = F.cross_entropy(m(x), y)
    opt.zero_grad()
    loss.backward()
    opt.step()
    m.eval()
    with torch.no_grad():
        acc = (m(x).argmax(1) == y).float().mean().item()
    torch.save(m.state_dict(), "sage.pt")
# The transposed adjacency, for the way back, made on the GPU once.
back = m.A.t().to_sparse_csr()
features = nn.Parameter(torch.randn(N, 64).cuda())
opt = torch.optim.SGD([features], 0.1)
for epoch in range(2):
    with torch.autocast("cuda", torch.float16):
        smooth = m.A @ features
    loss = smooth.float().square().mean() + (back @ features).square().mean()
    loss.backward()
    opt.step()
    opt.zero_grad()
