"""Steps of Qwen3-0.6B on random tokens, as llm-infra-bench measures them on one GPU.

    infra_qwen.py LENGTH BATCH PRECISION BACKEND [checkpointing]

``PRECISION``: bf16 (autocast) or fp32. ``BACKEND``: that of attention: flash, efficient or math.
Source: XiaoJianyu219/llm-infra-bench, experiments/08-single-gpu-profiling/scripts/train_loop.py.

What decides memory: weights in fp32, AdamW of PyTorch; tokens come from the host, labels are their
copy; gradients are freed before each forward pass; what the model returned lives until the step is
over. Peaks are set back behind ten steps that warm up: two stand for them, and two for the thirty.
"""

import json
import sys
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM

CONFIG = Path(__file__).resolve().parents[2] / "configs" / "models" / "Qwen--Qwen3-0.6B.json"
BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
}
WARM, STEPS = 2, 2


def build() -> torch.nn.Module:
    """The model in fp32, on the host."""
    settings = json.loads(CONFIG.read_text())
    config = AutoConfig.for_model(settings.pop("model_type"), **settings)
    config._attn_implementation = "sdpa"
    config.use_cache = False
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def main(length: str, batch: str, precision: str, backend: str, *words: str) -> None:
    """Train."""
    model = build().to("cuda")
    model.train()
    if "checkpointing" in words:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    shape = (int(batch), int(length))
    ids = torch.randint(0, model.config.vocab_size, shape).to("cuda")
    labels = ids.clone()

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        mixed = torch.autocast("cuda", dtype=torch.bfloat16, enabled=precision == "bf16")
        with mixed, sdpa_kernel(BACKENDS[backend]):
            out = model(input_ids=ids, labels=labels, use_cache=False)
            loss = out.loss
        loss.backward()
        optimizer.step()
        return loss

    for _ in range(WARM):
        loss = step()
    torch.cuda.synchronize()
    loss.item()
    torch.cuda.reset_peak_memory_stats()
    for _ in range(STEPS):
        step()
    print(f"allocated {torch.cuda.max_memory_allocated()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
