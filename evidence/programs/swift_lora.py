"""LoRA on Yi's chat models by ms-swift of the winter of 2023, one text at a time.

    swift_lora.py MODEL LONGEST cut|dropped

MODEL is yi-6b or yi-34b; texts of more than LONGEST tokens are cut to that, or dropped.
Source: modelscope/ms-swift, docs/source/LLM/Benchmark.md, scripts/benchmark/test_memory_time. Texts
are said to have 3,234 tokens in the mean, 2,548 off it and 91 at the least; their lengths are drawn
to be so, with two of LONGEST among them.

What decides memory: weights, adapters and AdamW's states are in bfloat16, and so is autocast; the
adapters (rank 8) are on queries, keys and values; checkpoints are those with reentry. Logits and
loss are transformers' of 4.36: all logits go to fp32, and all but the last are copied. Their most
likely tokens are taken before they go. Flash attention gets no mask.
"""

import random
import sys

import torch
from peft import LoraConfig, get_peft_model
from torch.nn import functional
from transformers import AutoModelForCausalLM, LlamaConfig

MODELS = {
    # Width, inner width, layers, heads, heads of keys.
    "yi-6b": (4096, 11008, 32, 32, 4),
    "yi-34b": (7168, 20480, 60, 56, 8),
}
TOKENS, ACCUMULATED, TEXTS = 64000, 16, 32
"""TEXTS: of a thousand and more."""


def lengths(longest: int, longer: str) -> list[int]:
    """Of the texts, in their order."""
    drawn = random.Random(0)
    found: list[int] = []
    while len(found) < TEXTS:
        length = max(91, int(drawn.lognormvariate(7.84, 0.695)))
        if longer == "cut":
            length = min(length, longest)
        if length <= longest:
            found.append(length)
    found[5] = found[21] = longest
    return found


def main(name: str, longest: str, longer: str) -> None:
    """Two updates."""
    width, inner, layers, heads, key_heads = MODELS[name]
    config = LlamaConfig(
        vocab_size=TOKENS,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=key_heads,
        max_position_embeddings=4096,
        rms_norm_eps=1e-5,
        use_cache=False,
    )
    with torch.device("cuda"):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    settings = LoraConfig(
        r=8,
        lora_alpha=32,
        lora_dropout=0.05,
        target_modules=["q_proj", "k_proj", "v_proj"],
        task_type="CAUSAL_LM",
    )
    whole = get_peft_model(model, settings, autocast_adapter_dtype=False)
    model.enable_input_require_grads()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})
    whole.train()
    trained = [one for one in whole.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, weight_decay=0.01)
    right = torch.zeros((), device="cuda")

    def outputs_of(tokens: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cuda", dtype=torch.bfloat16):
            hidden = model.model(input_ids=tokens).last_hidden_state
            logits = model.lm_head(hidden)
            logits = logits.float()
            before = logits[..., :-1, :].contiguous()
            after = tokens[..., 1:].contiguous()
            loss = functional.cross_entropy(before.view(-1, TOKENS), after.view(-1))
        return loss, logits

    def loss_of(tokens: torch.Tensor) -> torch.Tensor:
        loss, logits = outputs_of(tokens)
        likely = logits.argmax(dim=2)[..., :-1]
        right.add_((likely == tokens[..., 1:]).float().mean() / ACCUMULATED)
        return loss

    for number, length in enumerate(lengths(int(longest), longer), 1):
        tokens = torch.ones(1, length, dtype=torch.long).to("cuda")
        loss = loss_of(tokens) / ACCUMULATED
        loss.backward()
        if number % ACCUMULATED == 0:
            torch.nn.utils.clip_grad_norm_(trained, 0.5)
            optimizer.step()
            whole.zero_grad()
    print(f"reserved {torch.cuda.max_memory_reserved()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
