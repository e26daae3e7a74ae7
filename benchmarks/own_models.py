"""Models of one's own that are unlike any of transformers, each of which returns its loss."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Gan(nn.Module):
    """A generator and its critic in one step."""

    def __init__(self):
        super().__init__()
        self.g = nn.Sequential(
            nn.Linear(64, 512), nn.LeakyReLU(0.2, inplace=True), nn.Linear(512, 1024), nn.Tanh()
        )
        self.d = nn.Sequential(nn.Linear(1024, 512), nn.Dropout(0.3), nn.Linear(512, 1))

    def forward(self, z, real):
        fake = self.g(z)
        a = self.d(fake)
        b = self.d(real)
        return (
            F.binary_cross_entropy_with_logits(a, torch.ones_like(a))
            + F.binary_cross_entropy_with_logits(b, torch.zeros_like(b))
            + F.softplus(-b).mean()
        )


class Vae(nn.Module):
    """A variational autoencoder with the sum of its errors."""

    def __init__(self):
        super().__init__()
        self.e = nn.Linear(784, 400)
        self.m = nn.Linear(400, 20)
        self.v = nn.Linear(400, 20)
        self.d = nn.Sequential(nn.Linear(20, 400), nn.ReLU(), nn.Linear(400, 784), nn.Sigmoid())

    def forward(self, x):
        h = F.relu(self.e(x))
        m, v = self.m(h), self.v(h)
        z = m + torch.randn_like(v) * (v * 0.5).exp()
        y = self.d(z)
        return (
            F.binary_cross_entropy(y, torch.zeros_like(y), reduction="sum")
            - 0.5 * (1 + v - m.pow(2) - v.exp()).sum()
        )


class Metric(nn.Module):
    """Bags of tokens under three losses at once."""

    def __init__(self):
        super().__init__()
        self.e = nn.EmbeddingBag(5000, 128)
        self.l = nn.Linear(128, 64)
        self.t = nn.TripletMarginLoss(margin=0.3)
        self.m = nn.MultiMarginLoss()
        self.h = nn.Linear(64, 50)

    def forward(self, a, p, n, y):
        x, same, other = (F.normalize(self.l(self.e(i)), dim=-1) for i in (a, p, n))
        near = self.t(x, same, other) + self.m(self.h(x), y)
        return near + F.soft_margin_loss(x, torch.ones_like(x))


class Post(nn.Module):
    """Norms come first, and the last weights are the first ones."""

    def __init__(self):
        super().__init__()
        self.e = nn.Embedding(2000, 128)
        self.p = nn.Parameter(torch.zeros(1, 64, 128))
        self.b = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(
                128, 4, 512, batch_first=True, norm_first=True, activation="gelu"
            ),
            3,
            enable_nested_tensor=False,
        )
        self.o = nn.Linear(128, 2000, bias=False)
        self.o.weight = self.e.weight

    def forward(self, ids):
        x = self.b(self.e(ids) + self.p)
        y = self.o(x)
        return F.cross_entropy(
            y[:, :-1].reshape(-1, 2000), ids[:, 1:].reshape(-1), label_smoothing=0.1
        )


class Moe(nn.Module):
    """Every expert runs, two of them count."""

    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(128, 4)
        self.x = nn.ModuleList(
            nn.Sequential(nn.Linear(128, 256), nn.SiLU(), nn.Linear(256, 128)) for _ in range(4)
        )

    def forward(self, x):
        w = self.gate(x).softmax(-1)
        v, i = w.topk(2, -1)
        y = sum(w[..., k : k + 1] * self.x[k](x) for k in range(4))
        return F.mse_loss(y, x) + (v.sum() - i.float().mean()).abs() * 0


class Lrn(nn.Module):
    """A recurrent layer, and a cell that reads every fourth step of it."""

    def __init__(self):
        super().__init__()
        self.g = nn.GRU(64, 128, 2, batch_first=True, dropout=0.1)
        self.c = nn.LSTMCell(128, 96)
        self.o = nn.Linear(96, 10)

    def forward(self, x, y):
        h, _ = self.g(x)
        s = (torch.zeros(x.shape[0], 96, device=x.device),) * 2
        for t in range(0, h.shape[1], 4):
            s = self.c(h[:, t], s)
        return F.nll_loss(F.log_softmax(self.o(s[0]), -1), y)


def _block(channels, wanted):
    return nn.Sequential(
        nn.GroupNorm(4, channels), nn.SiLU(), nn.Conv2d(channels, wanted, 3, padding=1)
    )


class Unet(nn.Module):
    """Convolutions with channels last, and a skip."""

    def __init__(self):
        super().__init__()
        self.i = nn.Conv2d(4, 16, 3, padding=1)
        self.a = _block(16, 32)
        self.b = _block(32, 32)
        self.u = _block(64, 16)
        self.o = nn.Conv2d(16, 4, 1)

    def forward(self, x):
        x = x.to(memory_format=torch.channels_last)
        h = self.i(x)
        a = self.a(h)
        b = self.b(F.avg_pool2d(a, 2))
        b = F.interpolate(b, scale_factor=2)
        y = self.o(self.u(torch.cat([a, b], 1)))
        return F.huber_loss(y, torch.zeros_like(y))


class Graph(nn.Module):
    """Messages summed over edges."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 128)
        self.b = nn.Linear(128, 32)

    def forward(self, x, s, d):
        h = self.a(x).relu()
        m = torch.zeros_like(h).index_add(0, d, h[s])
        n = (
            torch.zeros(x.shape[0], device=x.device)
            .scatter_add(0, d, torch.ones(s.shape[0], device=x.device))
            .clamp(min=1)
        )
        h = self.b(m / n[:, None])
        return F.gaussian_nll_loss(
            h, torch.zeros_like(h), torch.ones_like(h)
        ) + F.cosine_embedding_loss(h, h.roll(1, 0), torch.ones(h.shape[0], device=x.device))


class Double(nn.Module):
    """Half of it is frozen, and it works in fp64."""

    def __init__(self):
        super().__init__()
        self.a = nn.Linear(128, 128)
        self.b = nn.Linear(128, 128)
        self.register_buffer("r", torch.zeros(128))
        self.a.requires_grad_(False)

    def forward(self, x):
        h = self.a(x).double()
        h = torch.linalg.norm(h, dim=-1, keepdim=True) * h
        self.r = self.r + h.float().mean(0).detach()
        return self.b(h.float()).logsumexp(-1).mean()


class Ckpt(nn.Module):
    """Blocks that are recomputed, around a residual stream."""

    def __init__(self):
        super().__init__()
        self.l = nn.ModuleList(
            nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256), nn.LayerNorm(256))
            for _ in range(4)
        )
        self.r = nn.RMSNorm(256)

    def forward(self, x):
        for m in self.l:
            x = x + checkpoint(m, x, use_reentrant=False)
        return self.r(x).pow(2).mean()


class Mha(nn.Module):
    """Queries that look at a memory, as a detector's decoder."""

    def __init__(self):
        super().__init__()
        self.d = nn.TransformerDecoder(nn.TransformerDecoderLayer(128, 8, 256), 2)
        self.q = nn.Parameter(torch.zeros(20, 1, 128))
        self.h = nn.Linear(128, 91)

    def forward(self, mem, y):
        q = self.q.expand(-1, mem.shape[1], -1)
        o = self.d(q, mem)
        return F.cross_entropy(self.h(o).permute(1, 2, 0), y) + F.smooth_l1_loss(
            o, torch.zeros_like(o)
        )
