"""XLS-R, cut to its first blocks, and a small head: trained to tell spoken from made speech.

    hearsay_ssl.py BLOCKS FROZEN KEPT BATCH

``FROZEN``: blocks at the bottom that learn nothing. ``KEPT``: yes, or no where blocks are
checkpointed. Source: danmano411/hearsay, scripts/vram_probe.py and src/hearsay/models/ssl_e2e.py:
four seconds of sound a sample, each configuration a process of its own.

What decides memory: transformers' Wav2Vec2Model with SDPA under autocast to bf16, weights in fp32;
its convolutions over sound run without gradients, and its time masks are drawn; the head is in
fp32. AdamW has two groups for each block, and two for the head; gradients are clipped, and freed
behind each step. The process is kept to 92 % of the card.
"""

import sys

import torch
from torch import nn
from torch.nn import functional
from transformers import AutoModel, Wav2Vec2Config

SAMPLES = 64000
STEPS = 6
"""Of 12."""
MODEL = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4096,
    "activation_dropout": 0.0,
    "attention_dropout": 0.1,
    "hidden_dropout": 0.1,
    "feat_proj_dropout": 0.1,
    "final_dropout": 0.0,
    "conv_bias": True,
    "do_stable_layer_norm": True,
    "feat_extract_norm": "layer",
    "mask_feature_prob": 0.0,
    "mask_time_length": 10,
    "mask_time_min_masks": 0,
    "mask_time_prob": 0.05,
    "layerdrop": 0.0,
}
"""facebook/wav2vec2-xls-r-300m, with what the source sets otherwise."""


class Head(nn.Module):
    """The states of all blocks, weighed, and their statistics over time."""

    def __init__(self, states: int, wide: int) -> None:
        super().__init__()
        self.weighed = nn.Parameter(torch.zeros(states))
        self.proj = nn.Linear(wide, 256)
        self.att = nn.Sequential(nn.Linear(256, 128), nn.Tanh(), nn.Linear(128, 1))
        self.out = nn.Linear(512, 1)

    def forward(self, states: tuple[torch.Tensor, ...]) -> torch.Tensor:
        """One logit a sample."""
        h = torch.stack([state.float() for state in states], 0)
        h = (torch.softmax(self.weighed, 0).view(-1, 1, 1, 1) * h).sum(0)
        h = self.proj(h)
        a = torch.softmax(self.att(h), dim=1)
        mean = (a * h).sum(1)
        spread = ((a * h * h).sum(1) - mean * mean).clamp(min=1e-5).sqrt()
        return self.out(torch.cat([mean, spread], -1)).squeeze(-1)


class Detector(nn.Module):
    """XLS-R's blocks and the head."""

    def __init__(self, blocks: int, frozen: int, *, kept: bool) -> None:
        super().__init__()
        config = Wav2Vec2Config(**MODEL)
        self.ssl = AutoModel.from_config(config, attn_implementation="sdpa")
        encoder = self.ssl.encoder
        encoder.layers = encoder.layers[:blocks]
        self.ssl.config.num_hidden_layers = blocks
        encoder.layer_norm = nn.Identity()
        if not kept:
            once = {"use_reentrant": False}
            self.ssl.gradient_checkpointing_enable(gradient_checkpointing_kwargs=once)
        self._freeze(frozen)
        self.head = Head(blocks + 1, config.hidden_size)

    def _freeze(self, frozen: int) -> None:
        heard = self.ssl.feature_extractor
        self.ssl.freeze_feature_encoder()
        for part in heard.modules():
            if hasattr(part, "gradient_checkpointing"):
                part.gradient_checkpointing = False
        heard.forward = torch.no_grad()(heard.forward)
        if frozen:
            for name, weight in self.ssl.named_parameters():
                if not name.startswith("encoder.layers."):
                    weight.requires_grad_(False)
            self.ssl.encoder.layers[:frozen].requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sound to logits."""
        spread = torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-7)
        x = (x - x.mean(-1, keepdim=True)) / spread
        states = self.ssl(x, output_hidden_states=True).hidden_states
        with torch.autocast("cuda", enabled=False):
            return self.head(states)


def groups(model: Detector) -> list[dict]:
    """Two for each block, matrices and the rest; what lies below goes with the first."""
    of: dict[int, list[nn.Parameter]] = {}
    for name, weight in model.ssl.named_parameters():
        if name.startswith("feature_extractor.") or not weight.requires_grad:
            continue
        inside = name.startswith("encoder.layers.")
        of.setdefault(int(name.split(".")[2]) + 1 if inside else 1, []).append(weight)
    together = [of[block] for block in sorted(of)] + [list(model.head.parameters())]
    made = []
    for weights in together:
        made.append({"params": [one for one in weights if one.ndim > 1], "weight_decay": 0.01})
        made.append({"params": [one for one in weights if one.ndim <= 1], "weight_decay": 0.0})
    return [group for group in made if group["params"]]


def main(blocks: str, frozen: str, kept: str, batch: str) -> None:
    """Train."""
    torch.cuda.set_per_process_memory_fraction(0.92, 0)
    model = Detector(int(blocks), int(frozen), kept=kept == "yes").to("cuda").train()
    trained = groups(model)
    weights = [one for group in trained for one in group["params"]]
    print(f"trained {sum(one.numel() for one in weights) / 1e6:.1f} M")
    optimizer = torch.optim.AdamW(trained, lr=2e-5, betas=(0.9, 0.98))
    x = torch.randn(int(batch), SAMPLES, device="cuda") * 0.05
    y = torch.tensor([0.0, 1.0] * (int(batch) // 2), device="cuda")
    for _ in range(STEPS):
        with torch.autocast("cuda", dtype=torch.bfloat16):
            logit = model(x)
        loss = functional.binary_cross_entropy_with_logits(logit.float(), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
