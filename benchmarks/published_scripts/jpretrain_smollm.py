"""Steps of SmolLM2-135M on random tokens in bf16 by autocast, batch after batch.

    jpretrain_smollm.py BATCH...

Source: czhs/j-pretrain, scripts/bench_throughput.py. Texts have 1,024 tokens. Batches run one
behind the other in one process, each with a model of its own; the last is the one that is read.

What decides memory: weights in fp32, attention by PyTorch, AdamW, fused; labels are the tokens;
what the model returned, logits and the cache of keys and values among it, lives until the step is
over; gradients go at its end. The source has transformers 4.46, whose code turns all logits into
fp32, copies all but the last, and repeats keys and values for the heads. Peaks are of loading and
of 55 steps, for which three stand.
"""

import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

LENGTH, STEPS = 1024, 3
SIZES = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "hidden_act": "silu",
    "max_position_embeddings": 8192,
    "rope_theta": 100000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def run(batch: int) -> None:
    """Train one model."""
    model = LlamaForCausalLM(LlamaConfig(**SIZES, attn_implementation="sdpa")).to("cuda")
    model.train()
    adam = {"lr": 3e-4, "betas": (0.9, 0.95), "weight_decay": 0.1, "fused": True}
    optimizer = torch.optim.AdamW(model.parameters(), **adam)
    torch.cuda.reset_peak_memory_stats()

    def step() -> float:
        ids = torch.randint(0, SIZES["vocab_size"], (batch, LENGTH), device="cuda")
        with torch.autocast("cuda", dtype=torch.bfloat16):
            out = model(input_ids=ids, labels=ids)
            loss = out.loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.item()

    for _ in range(STEPS):
        step()
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


def main(*batches: str) -> None:
    """Run all."""
    torch.backends.cuda.matmul.allow_tf32 = True
    for batch in batches:
        run(int(batch))
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(*sys.argv[1:])
