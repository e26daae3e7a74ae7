"""Losses, norms and attention in single operators, as Liger-Kernel measures its kernels' rivals.

    liger_losses.py NAME SIZE [SETTING=VALUE ...]

Each is run ten times forward and backward. What the script of the source puts on the GPU beside the
module that is measured (the kernel's module, of as many weights) is there too. Sizes that the
source's table calls its configuration are settings here.
"""

import copy
import math
import sys
from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional

TIMES = 10
VOCABULARY = 128256
WIDE = torch.float32
NARROW = torch.bfloat16
Run = Callable[[], None]


def tvd(size: int, _: dict[str, int]) -> Run:
    """Total variation of two distributions."""
    ours = torch.randn(8 * 2048, size, requires_grad=True, device="cuda").softmax(dim=-1)
    theirs = torch.randn(8 * 2048, size, device="cuda").softmax(dim=-1)

    def full() -> None:
        loss = torch.sum(torch.abs(ours - theirs) / 2.0) / ours.size(0)
        loss.backward(retain_graph=True)

    return full


def kl_div(size: int, _: dict[str, int]) -> Run:
    """PyTorch's own divergence."""
    ours = torch.randn(8 * 2048, size, requires_grad=True, device="cuda").log_softmax(dim=-1)
    theirs = torch.randn(8 * 2048, size, device="cuda").softmax(dim=-1)
    loss = nn.KLDivLoss(reduction="batchmean")

    def full() -> None:
        loss(ours, theirs).backward(retain_graph=True)

    return full


def jsd(size: int, settings: dict[str, int]) -> Run:
    """Jensen-Shannon of log-probabilities."""
    rows = settings.get("rows", 4 * 2048)
    ours = torch.randn(rows, size, requires_grad=True, device="cuda").log_softmax(dim=-1)
    theirs = torch.randn(rows, size, device="cuda").log_softmax(dim=-1)
    divergence = nn.KLDivLoss(reduction="batchmean", log_target=True)

    def loss(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        p, q = p.view(-1, p.size(-1)), q.view(-1, q.size(-1))
        mean = 0.5 * (torch.exp(p) + torch.exp(q))
        log_mean = torch.log(mean)
        return 0.5 * (divergence(log_mean, p) + divergence(log_mean, q))

    def full() -> None:
        value = loss(ours, theirs)
        value.backward(retain_graph=True)

    return full


def jsd_by_row(rows: int, _: dict[str, int]) -> Run:
    """The same row by row, as later scripts have it."""
    ours = torch.randn(rows, VOCABULARY, requires_grad=True, device="cuda").log_softmax(dim=-1)
    theirs = torch.randn(rows, VOCABULARY, device="cuda").log_softmax(dim=-1)
    divergence = nn.KLDivLoss(reduction="none", log_target=True)

    def loss(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        p, q = p.view(-1, p.size(-1)), q.view(-1, q.size(-1))
        mean = torch.lerp(torch.exp(q), torch.exp(p), 0.5)
        near = 0.5 * divergence(torch.log(mean), p).sum(dim=-1)
        value = near + 0.5 * divergence(torch.log(mean), q).sum(dim=-1)
        return (value / q.shape[0]).sum()

    def full() -> None:
        value = loss(ours, theirs)
        value.backward(torch.randn_like(value), retain_graph=True)

    return full


class Heads(nn.Module):
    """A student's and a teacher's last layer in bf16."""

    def __init__(self, student: int, teacher: int) -> None:
        super().__init__()
        self.student = nn.Linear(student, VOCABULARY, bias=False, dtype=NARROW)
        self.teacher = nn.Linear(teacher, VOCABULARY, bias=False, dtype=NARROW)


def head_and_jsd(rows: int, _: dict[str, int]) -> Run:
    """Two last layers of 4,096 and Jensen-Shannon after them; the kernel's share their weights."""
    heads = Heads(4096, 4096).to("cuda")
    divergence = nn.KLDivLoss(reduction="batchmean", log_target=True)
    student = torch.rand(rows, 4096, requires_grad=True, dtype=NARROW, device="cuda")
    teacher = torch.rand(rows, 4096, dtype=NARROW, device="cuda")

    def loss(q: torch.Tensor, p: torch.Tensor) -> torch.Tensor:
        p, q = p.to(torch.float), q.to(torch.float)
        p, q = p.view(-1, p.size(-1)), q.view(-1, q.size(-1))
        mean = torch.lerp(torch.exp(p), torch.exp(q), 0.5)
        value = 0.5 * divergence(torch.log(mean), p) + 0.5 * divergence(torch.log(mean), q)
        return value.to(NARROW)

    def forward() -> torch.Tensor:
        ours, theirs = heads.student(student), heads.teacher(teacher)
        q = torch.log_softmax(ours / 1.0, dim=-1)
        p = torch.log_softmax(theirs / 1.0, dim=-1)
        return loss(q, p)

    def full() -> None:
        forward().backward()

    return full


def distil(rows: int, _: dict[str, int]) -> Run:
    """Cross entropy and Jensen-Shannon of logits in fp32; the kernel's layers lie beside it.

    As the script of the readings' own commit has it (9218cf07); the one that was released takes
    the logarithm of each softmax at once.
    """
    heads = Heads(2048, 4096).to("cuda")
    rival = Heads(2048, 4096).to("cuda")
    once = torch.rand(rows, 2048, device="cuda", dtype=NARROW)
    unused, student = (once.detach().clone().requires_grad_(True) for _ in "ab")
    teacher = torch.rand(rows, 4096, device="cuda", dtype=NARROW)
    target = torch.randint(0, VOCABULARY, (rows,), device="cuda", dtype=torch.long)

    def outputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        ours = student.view(-1, 2048) @ heads.student.weight.t()
        with torch.no_grad():
            theirs = teacher.view(-1, 4096) @ heads.teacher.weight.t()
        ours_wide, theirs_wide = ours.view(rows, -1).float(), theirs.view(rows, -1).float()
        return ours_wide, theirs_wide, functional.cross_entropy(ours_wide, target)

    def soft(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
        ours, theirs = ours / 1.0, theirs / 1.0
        q, p = functional.softmax(ours, dim=-1), functional.softmax(theirs, dim=-1)
        log_mean = torch.log((q + p) / 2)
        settings = {"reduction": "batchmean", "log_target": True}
        near = functional.kl_div(log_mean, torch.log(q), **settings)
        far = functional.kl_div(log_mean, torch.log(p), **settings)
        return (near + far) / 2

    def forward() -> torch.Tensor:
        ours, theirs, hard = outputs()
        return 0.5 * hard + 0.5 * soft(ours, theirs).mean()

    def full(kept: tuple[object, ...] = (rival, unused)) -> None:
        forward().backward()

    return full


class AddAndNorm(nn.Module):
    """A residual that is added, and RMSNorm after it."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, hidden: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Both of one shape."""
        kind = hidden.dtype
        hidden, residual = hidden.to(WIDE), residual.to(WIDE)
        hidden = hidden + residual
        residual = hidden
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + 1e-6)
        return self.weight * hidden.to(kind), residual.to(kind)


def add_and_norm(width: int, _: dict[str, int]) -> Run:
    """2,048 rows in fp32; three modules that are compared lie on the GPU."""
    layers = [AddAndNorm(width).to("cuda") for _ in range(3)]
    x, residual = (torch.randn((2048, width), device="cuda") for _ in "ab")
    dy, ds = torch.randn_like(x), torch.randn_like(residual)
    x.requires_grad_(True)
    residual.requires_grad_(True)

    def full() -> None:
        y, s = layers[1](x, residual)
        torch.autograd.backward((y, s), (dy, ds))

    return full


def with_gradient(layer: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Run:
    """A module whose output gets a gradient that is there already, its rival beside it."""
    layer = layer.to("cuda").to(dtype)
    rival = copy.deepcopy(layer)
    x = torch.randn(shape, dtype=dtype, device="cuda")
    dy = torch.randn_like(x)
    x.requires_grad_(True)

    def full(rival: nn.Module = rival) -> None:
        y = layer(x)
        y.backward(dy, retain_graph=True)

    return full


def layer_norm(width: int, _: dict[str, int]) -> Run:
    """4,096 rows in fp32."""
    return with_gradient(nn.LayerNorm(width, eps=1e-6), (4096, width), WIDE)


def group_norm(channels: int, _: dict[str, int]) -> Run:
    """128 samples of 512 numbers a channel, four channels a group, in fp32."""
    layer = nn.GroupNorm(channels // 4, channels, eps=1e-6)
    return with_gradient(layer, (128, channels, 512), WIDE)


def main(name: str, size: str, *words: str) -> None:
    """Measure one."""
    import liger_attention

    settings = {key: int(value) for key, value in (word.split("=") for word in words)}
    makers = {
        "tvd": tvd,
        "kl_div": kl_div,
        "jsd": jsd,
        "head_and_jsd": head_and_jsd,
        "jsd_by_row": jsd_by_row,
        "distil": distil,
        "add_and_norm": add_and_norm,
        "layer_norm": layer_norm,
        "group_norm": group_norm,
    }
    makers |= liger_attention.makers(with_gradient)
    full = makers[name](int(size), settings)
    for _ in range(TIMES):
        full()
    assert math.isfinite(torch.cuda.max_memory_allocated())


if __name__ == "__main__":
    main(*sys.argv[1:])
