"""A Llama of 226M that is trained from scratch in float16 by autocast, checkpointed.

    nano_slm.py LENGTH

Source: alshahia/nano_SLMs, scripts/vram_probe.py with configs/target.yaml: one sequence of random
tokens at a time, 32 of them for an update.

What decides memory: the model is transformers' LlamaForCausalLM with PyTorch's attention, weights
in fp32, checkpointed without reentry; gradients are freed before each update's first sequence; a
scaler stands before AdamW. What the model returns goes with each sequence.
"""

import sys

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

TOKENS, ACCUMULATED, UPDATES = 32768, 32, 3
"""UPDATES: of 22."""


def main(length: str) -> None:
    """Train."""
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=16,
        num_attention_heads=16,
        num_key_value_heads=4,
        max_position_embeddings=512,
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
        use_cache=False,
    )
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").cuda()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.95), weight_decay=0.1)
    scaler = torch.amp.GradScaler("cuda")

    def sequence() -> float:
        tokens = torch.randint(0, TOKENS, (1, int(length)), device="cuda")
        with torch.autocast("cuda", dtype=torch.float16):
            outputs = model(input_ids=tokens, labels=tokens)
        scaler.scale(outputs.loss / ACCUMULATED).backward()
        return float(outputs.loss)

    for _ in range(UPDATES):
        optimizer.zero_grad(set_to_none=True)
        for _ in range(ACCUMULATED):
            sequence()
        scaler.step(optimizer)
        scaler.update()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
