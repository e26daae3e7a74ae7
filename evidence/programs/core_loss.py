"""Two steps of a network for losses of magnetic cores, with one of eight parts for sequences.

    core_loss.py [planned|tried] NAME:BATCH...

Source: a public repository (scripts/benchmark_pretraining_throughput.py, src/mepi_v1/models.py and
src/mepi_v1/backbones.py): waves of 1,024 points become 256 tokens of 256 by convolutions and their
spectrum, the frequency and the temperature come in by attention, and heads for ten materials answer
for the samples of theirs. NAME is TCN, LSTM, BiLSTM, LSTM-Attention, GRU, BiGRU, RWKV or xLSTM,
each of four layers. All ran in one process; the last of the words is the one that is read.

What decides memory: fp16 by autocast with PyTorch's scaler; recurrent layers by cuDNN; AdamW;
gradients are dropped before each step and clipped. When the cache is given back at the end of one,
its weights and gradients are still held by the loss. Whether cuDNN was asked to try its engines is
not seen: ``planned``, as without a trial, or all that it ``tried``.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

POINTS, WIDTH, LAYERS, HEADS, MATERIALS, STEPS = 1024, 256, 4, 8, 10, 2


class Temporal(nn.Module):
    """Two dilated convolutions around which the input goes."""

    def __init__(self, apart: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for _ in range(2):
            parts += [nn.Conv1d(WIDTH, WIDTH, 3, padding=apart, dilation=apart), nn.GELU()]
            parts += [nn.Dropout(0.1)]
        self.parts, self.norm = nn.Sequential(*parts), nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.parts(x.transpose(1, 2)).transpose(1, 2))


class Recurrent(nn.Module):
    """Layers of one kind, in one direction or both."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        both, made = kind.startswith("Bi"), nn.LSTM if kind.endswith("LSTM") else nn.GRU
        width = WIDTH // 2 if both else WIDTH
        self.part = made(WIDTH, width, LAYERS, batch_first=True, bidirectional=both, dropout=0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.part(x)[0]


class Attended(nn.Module):
    """Recurrent layers, and attention over what they say."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent, self.norm = Recurrent("BiLSTM"), nn.LayerNorm(WIDTH)
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.recurrent(x)
        return self.norm(x + self.attention(x, x, x, need_weights=False)[0])


class Rwkv(nn.Module):
    """Mixes each token with the one before it, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.key, self.value, self.gate, self.out = (
            nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)
        )
        self.channels = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        before = torch.cat((y[:, :1], y[:, :-1]), dim=1)
        y = 0.5 * y + 0.5 * before
        y = self.out(torch.sigmoid(self.gate(y)) * self.value(y) * torch.tanh(self.key(y)))
        x = x + y
        return x + self.channels(self.norm_2(x))


class Xlstm(nn.Module):
    """One LSTM layer with a gate."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.memory = nn.LayerNorm(WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)
        self.gate = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Sigmoid())
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        kept, _ = self.memory(y)
        return x + self.gate(y) * self.out(kept)


def sequence(name: str) -> nn.Module:
    """The part that is asked for."""
    if name == "TCN":
        return nn.Sequential(*(Temporal(2**index) for index in range(LAYERS)))
    if name == "LSTM-Attention":
        return Attended()
    if name in ("RWKV", "xLSTM"):
        made = {"RWKV": Rwkv, "xLSTM": Xlstm}[name]
        return nn.Sequential(*(made() for _ in range(LAYERS)))
    return Recurrent(name)


class Net(nn.Module):
    """Waves and how they were taken to losses."""

    def __init__(self, name: str) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for before, after in ((1, 64), (64, 128), (128, 128)):
            parts += [nn.Conv1d(before, after, 7, padding=3), nn.GELU(), nn.MaxPool1d(2)]
        self.waves, self.projection = nn.Sequential(*parts[:-1]), nn.Linear(129, WIDTH)
        self.taken = nn.Sequential(
            nn.Linear(2, WIDTH), nn.GELU(), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)
        )
        self.attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.fused, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.sequence = sequence(name)
        self.heads = nn.ModuleList(
            nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.Linear(64, 1))
            for _ in range(MATERIALS)
        )

    def forward(self, waves: torch.Tensor, taken: torch.Tensor, of: torch.Tensor) -> torch.Tensor:
        x = self.waves(waves)
        spectrum = torch.abs(torch.fft.rfft(waves.float(), dim=-1))
        spectrum = functional.adaptive_avg_pool1d(spectrum, x.shape[-1])
        x = self.projection(torch.cat((x, spectrum), dim=1).transpose(1, 2))
        token = self.taken(taken).unsqueeze(1)
        x = self.fused(x + self.attention(x, token, token, need_weights=False)[0])
        x = self.norm(self.sequence(x).mean(dim=1))
        bool(torch.any(of < 0)), bool(torch.any(of >= MATERIALS))
        answers = torch.empty(len(x), device=x.device, dtype=torch.float32)
        for index, head in enumerate(self.heads):
            bool(torch.any(of == index))
            mine = torch.arange(index, len(x), MATERIALS, device=x.device)
            answers[mine] = head(x[mine]).squeeze(-1).float()
        return answers


def bench(name: str, batch: int) -> tuple[int, int]:
    """A network of its own."""
    model = Net(name).to("cuda").train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5, weight_decay=1e-4)
    scaler = torch.amp.GradScaler("cuda")
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        waves, taken = torch.rand(batch, 1, POINTS).to("cuda"), torch.rand(batch, 2).to("cuda")
        of, truth = (torch.arange(batch) % MATERIALS).to("cuda"), torch.rand(batch).to("cuda")
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cuda"):
            out = model(waves, taken, of)
            loss = functional.mse_loss(out, truth) + 0.3 * functional.l1_loss(out, truth)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        torch.cuda.synchronize()
        bool(torch.isfinite(loss))
    read = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    del model, optimizer, scaler
    torch.cuda.empty_cache()
    return read


def main(*words: str) -> None:
    """One after the other."""
    torch.backends.cudnn.benchmark = "tried" in words
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.set_float32_matmul_precision("high")
    for word in words:
        if ":" in word:
            name, batch = word.split(":")
            allocated, reserved = bench(name, int(batch))
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
