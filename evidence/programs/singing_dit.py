"""Updates of an acoustic model for singing: an encoder, a decoder of its own and a DiT by flow.

    singing_dit.py FRAMES ACCUMULATED

Source: a public repository (scripts/validate_dit_8gb.py and its template for a DiT): 32 phonemes
become FRAMES of a condition by a transformer of 4 layers; a ConvNeXt over time guesses the
spectrogram of 128 bands, and a DiT of 8 layers of 384 the velocity from noise to it. One sample a
pass, ACCUMULATED passes an update.

What decides memory: bfloat16 by autocast with the loss inside it; each of the DiT's layers is run
again in the backward pass; attention with a mask; AdamW; gradients are dropped before each update
and clipped. The peak is set back when the model and the sample are on the card.
"""

import math
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

WIDTH, BANDS, PHONEMES, VOCABULARY = 256, 128, 32, 64
DIT, DIT_HEADS, DIT_LAYERS, TIME = 384, 6, 8, 256
STEPS = 4


def turned(x: torch.Tensor) -> torch.Tensor:
    """Each pair of channels by a quarter."""
    pairs = torch.stack((-x[..., 1::2], x[..., 0::2]), dim=-1)
    return pairs.reshape(x.shape)


class Rotary(nn.Module):
    """Angles of positions, kept from the first call on."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(8192, width))
        steps = 10000.0 ** -(torch.arange(0, width, 2) / width)
        self.steps = nn.Parameter(steps, requires_grad=False)
        self.known = 0

    @torch.autocast("cuda", enabled=False)
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = x.shape[-2]
        positions = torch.arange(length, device=x.device, dtype=x.dtype)
        if length > self.known:
            angles = positions.type(self.steps.dtype)[:, None] * self.steps
            self.kept[:length] = angles.repeat_interleave(2, dim=-1)
            self.known = length
        angles = self.kept[:length].detach()
        y = x * angles.cos() * 1.0 + turned(x) * angles.sin() * 1.0
        return torch.cat((x[..., :0], y, x[..., x.shape[-1] :]), dim=-1).type(x.dtype)


class EncoderLayer(nn.Module):
    """Attention of phonemes, and a convolution with a linear layer."""

    def __init__(self, rotary: Rotary, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.rotary = heads, rotary
        self.norm, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)
        self.wide = nn.Conv1d(WIDTH, 4 * WIDTH, 3, padding=1)
        self.narrow, self.none = nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.0)

    def attend(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        many, length, _ = x.shape
        parts = self.qkv(x).split(WIDTH, dim=-1)
        q, k, v = (one.view(many, length, self.heads, -1).transpose(1, 2) for one in parts)
        q, k = self.rotary(q), self.rotary(k)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(WIDTH // self.heads)
        scores = scores.masked_fill(padding[:, None, None], torch.finfo(scores.dtype).min)
        x = torch.matmul(self.none(functional.softmax(scores, dim=-1)), v)
        return self.out(x.transpose(1, 2).contiguous().view(many, length, WIDTH))

    def forward(self, x: torch.Tensor, padding: torch.Tensor) -> torch.Tensor:
        y = functional.dropout(self.attend(self.norm(x), padding), 0.1, training=True)
        x = (x + y) * (1 - padding.float())[..., None]
        y = self.wide(self.norm_2(x).transpose(1, 2)).transpose(1, 2)
        y = functional.dropout(functional.gelu(y * 3**-0.5), 0.1, training=True)
        y = functional.dropout(self.narrow(y), 0.1, training=True)
        return (x + y) * (1 - padding.float())[..., None]


class Encoder(nn.Module):
    """Phonemes, how long they are, pitch, key and speed to a condition of frames."""

    def __init__(self) -> None:
        super().__init__()
        self.phonemes = nn.Embedding(VOCABULARY, WIDTH, 0)
        self.lengths, self.pitch = nn.Linear(1, WIDTH), nn.Linear(1, WIDTH)
        self.key, self.speed = nn.Linear(1, WIDTH), nn.Linear(1, WIDTH)
        rotary = Rotary(WIDTH // 2)
        self.layers = nn.ModuleList(EncoderLayer(rotary) for _ in range(4))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: torch.Tensor, of: torch.Tensor, f0: torch.Tensor) -> torch.Tensor:
        embedded, padding = self.phonemes(tokens), tokens == 0
        lengths = of.new_zeros(1, PHONEMES + 1).scatter_add(1, of, torch.ones_like(of))
        extra = self.lengths(lengths[:, 1:].float()[:, :, None])
        present = 1 - padding.float()[:, :, None]
        x = functional.dropout(math.sqrt(WIDTH) * embedded + extra, 0.1, training=True) * present
        for layer in self.layers:
            x = layer(x, padding) * present
        x = functional.pad(self.norm(x) * present, [0, 0, 1, 0])
        condition = torch.gather(x, 1, of[..., None].repeat(1, 1, WIDTH))
        condition += self.pitch((1 + f0 / 700).log()[:, :, None])
        condition += self.key(torch.zeros(1, 1, device="cuda")[:, :, None])
        condition += self.speed(torch.ones(1, 1, device="cuda")[:, :, None])
        return condition


class Block(nn.Module):
    """ConvNeXt over time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.depthwise = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm, self.dropout = nn.LayerNorm(width, eps=1e-6), nn.Dropout(0.1)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.wide(self.norm(self.depthwise(x).transpose(1, 2)))
        y = self.gamma * self.narrow(functional.gelu(y))
        return x + self.dropout(y.transpose(1, 2))


class DitLayer(nn.Module):
    """Attention of frames and two linear layers, shifted and scaled by the time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_2 = (
            nn.LayerNorm(DIT, eps=1e-6, elementwise_affine=False) for _ in range(2)
        )
        self.qkv, self.out = nn.Linear(DIT, 3 * DIT), nn.Linear(DIT, DIT)
        steps = 10000.0 ** -(torch.arange(0, DIT // DIT_HEADS, 2) / (DIT // DIT_HEADS))
        self.register_buffer("steps", steps)
        self.wide, self.narrow = nn.Linear(DIT, 4 * DIT), nn.Linear(4 * DIT, DIT)
        self.dropout = nn.Dropout(0.0)
        self.by_time = nn.Sequential(nn.SiLU(), nn.Linear(DIT, 6 * DIT))

    def rotated(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(q.shape[-2], device=q.device, dtype=self.steps.dtype)
        angles = torch.outer(positions, self.steps)
        cos = angles.cos().repeat_interleave(2, dim=-1).to(q.dtype)[None, None]
        sin = angles.sin().repeat_interleave(2, dim=-1).to(q.dtype)[None, None]
        return q * cos + turned(q) * sin, k * cos + turned(k) * sin

    def attend(self, x: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        many, frames, _ = x.shape
        parts = self.qkv(x).reshape(many, frames, 3, DIT_HEADS, DIT // DIT_HEADS)
        q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.rotated(q, k)
        mask = torch.zeros(many, 1, 1, frames, dtype=q.dtype, device=q.device)
        mask = mask.masked_fill(~valid[:, None, None, :], float("-inf"))
        x = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(x.transpose(1, 2).reshape(many, frames, DIT))

    def forward(self, x: torch.Tensor, time: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        shift, scale, gate, shift_2, scale_2, gate_2 = (
            one[:, None, :] for one in self.by_time(time).chunk(6, dim=-1)
        )
        x = x + gate * self.attend(self.norm(x) * (1 + scale) + shift, valid)
        y = self.wide(self.norm_2(x) * (1 + scale_2) + shift_2)
        x = x + gate_2 * self.dropout(self.narrow(functional.gelu(y, approximate="tanh")))
        return x * valid[:, :, None]


class Dit(nn.Module):
    """Noise, a time and a condition to a velocity."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.condition = nn.Linear(BANDS, DIT), nn.Linear(WIDTH, DIT)
        self.time = nn.Sequential(nn.Linear(TIME, DIT), nn.SiLU(), nn.Linear(DIT, DIT))
        self.layers = nn.ModuleList(DitLayer() for _ in range(DIT_LAYERS))
        self.norm = nn.LayerNorm(DIT, eps=1e-6, elementwise_affine=False)
        self.by_time = nn.Sequential(nn.SiLU(), nn.Linear(DIT, 2 * DIT))
        self.leave = nn.Linear(DIT, BANDS)

    def forward(
        self, x: torch.Tensor, at: torch.Tensor, condition: torch.Tensor, valid: torch.Tensor
    ) -> torch.Tensor:
        bool(torch.all(valid.any(dim=1)))
        present = valid[:, :, None]
        entered = self.enter(x.flatten(1, 2).transpose(1, 2))
        y = (entered + self.condition(condition.transpose(1, 2))) * present
        half = TIME // 2
        steps = torch.exp(-math.log(10000) * torch.arange(half, device="cuda").float() / half)
        angles = at[:, None] * steps[None, :]
        time = self.time(torch.cat((angles.sin(), angles.cos()), dim=-1)).to(y.dtype)
        for layer in self.layers:
            y = checkpoint(layer, y, time, valid, use_reentrant=False)
        shift, scale = self.by_time(time).chunk(2, dim=-1)
        y = self.norm(y) * (1 + scale[:, None, :]) + shift[:, None, :]
        return (self.leave(y) * present).transpose(1, 2).reshape(x.shape)


class Model(nn.Module):
    """Encoder, decoder and DiT."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.dit = Encoder(), Dit()
        first, last = nn.Conv1d(WIDTH, 512, 7, padding=3), nn.Conv1d(512, BANDS, 7, padding=3)
        self.decoder = nn.Sequential(first, *(Block(512) for _ in range(6)), last)
        for name in ("lowest", "highest", "middle", "span"):
            self.register_buffer(name, torch.full((1, 1, 1), 1.0 if name == "highest" else 0.5))

    def forward(
        self, tokens: torch.Tensor, of: torch.Tensor, f0: torch.Tensor, target: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        condition, valid = self.encoder(tokens, of, f0), of > 0
        shared = condition * 0.1 + condition.detach() * 0.9
        guess = self.decoder(shared.transpose(1, 2)).transpose(1, 2)
        end = (target - self.lowest) / (self.highest - self.lowest) * 2 - 1
        end = end.transpose(-2, -1)[:, None]
        time = 0.4 + 0.6 * torch.rand(1, device="cuda")
        start = torch.randn_like(end)
        between = start + time[:, None, None, None] * (end - start)
        velocity = self.dit(between, time * 1000, condition.transpose(1, 2), valid)
        return guess, velocity, end - start


def main(frames: str, accumulated: str) -> None:
    """A few updates."""
    length, passes = int(frames), int(accumulated)
    model = Model().to("cuda").train()
    print(f"{sum(one.numel() for one in model.dit.parameters())} parameters of the DiT")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.98), weight_decay=0.01)
    tokens = torch.randint(1, VOCABULARY, (1, PHONEMES), device="cuda")
    indices = torch.arange(length, device="cuda")
    of = (indices * PHONEMES // length + 1)[None]
    f0 = torch.full((1, length), 220.0, device="cuda")
    target = torch.randn(1, length, BANDS, device="cuda")
    valid = (of > 0)[:, None, None]
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        optimizer.zero_grad(set_to_none=True)
        total = torch.zeros((), device="cuda")
        for _ in range(passes):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                guess, velocity, wanted = model(tokens, of, f0, target)
                first = ((velocity - wanted).square() * valid).sum()
                first = first / valid.expand_as(velocity).sum()
                scaled = (target - model.middle) / model.span
                loss = (first + functional.mse_loss(guess, scaled)) / passes
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        bool(torch.isfinite(total))
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
