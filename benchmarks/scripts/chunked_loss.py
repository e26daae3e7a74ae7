"""A loss by chunks that makes its gradients in forward, and checkpoints kept on the host."""

import torch
from torch import nn


class FLCE(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cuda")
    def forward(ctx, x, w, t, chunks=4):
        gx = torch.empty_like(x)
        gw = torch.zeros_like(w, dtype=torch.float32)
        tot = torch.zeros((), device=x.device)
        for xc, tc, gc in zip(x.chunk(chunks), t.chunk(chunks), gx.chunk(chunks)):
            lg = (xc @ w.T).float()
            ls = torch.logsumexp(lg, -1)
            tot += (ls - lg.gather(1, tc[:, None]).squeeze(1)).sum()
            lg.sub_(ls[:, None]).exp_()
            lg.scatter_add_(1, tc[:, None], torch.full_like(tc[:, None], -1, dtype=lg.dtype))
            lg.div_(len(t))
            g = lg.to(x.dtype)
            torch.mm(g, w, out=gc)
            gw.addmm_(g.T.float(), xc.float())
        ctx.save_for_backward(gx, gw.to(w.dtype))
        return tot / len(t)

    @staticmethod
    @torch.amp.custom_bwd(device_type="cuda")
    def backward(ctx, g):
        gx, gw = ctx.saved_tensors
        return gx * g, gw * g, None, None


class Off(torch.autograd.Function):
    """Checkpointing that keeps its input on the host, as unsloth does."""

    @staticmethod
    def forward(ctx, f, x, *a):
        s = x.to("cpu", non_blocking=True)
        with torch.no_grad():
            o = f(x, *a)
        ctx.save_for_backward(s)
        ctx.f = f
        ctx.a = a
        return o

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        x = x.to("cuda", non_blocking=True).detach().requires_grad_()
        with torch.enable_grad():
            o = ctx.f(x, *ctx.a)
        torch.autograd.backward(o, g)
        return (None, x.grad) + (None,) * len(ctx.a)


e = nn.Embedding(8000, 256).cuda().bfloat16()
bl = (
    nn.ModuleList(
        nn.TransformerEncoderLayer(256, 8, 1024, 0.0, batch_first=True, norm_first=True)
        for _ in range(3)
    )
    .cuda()
    .bfloat16()
)
optimizer = torch.optim.AdamW([*e.parameters(), *bl.parameters()], fused=True)
mask = nn.Transformer.generate_square_subsequent_mask(160, device="cuda", dtype=torch.bfloat16)
for i in range(3):
    t = torch.randint(0, 8000, (4, 161)).cuda()
    h = e(t[:, :-1])
    for b in bl:
        h = Off.apply(lambda z, b=b: b(z, src_mask=mask, is_causal=True), h)
    loss = FLCE.apply(h.reshape(-1, 256), e.weight, t[:, 1:].reshape(-1))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    print(loss.item())
