"""What peft's comparison of its methods trains: Llama-3.2-3B in bf16, four answers a batch.

    peft_methods.py LONGEST [ADAPTER] [optimizer=lora-fa] [cast=no] [prefix=TEXT]

``ADAPTER`` is what the experiment's adapter_config.json sets; without one all weights are trained.
Batches come from buckets of twenty, the longest first, and the cache is given back after every
tenth (run.py: ``BUCKET_FACTOR``, ``ACCELERATOR_EMPTY_CACHE_SCHEDULE``), so that the longest of all
meets a cache that holds nothing: it stands behind ten shorter ones here. ``LONGEST``: its tokens,
which the source does not say; they are read off one of its figures.
"""

import contextlib
import json
import random
import sys
import tempfile

import torch
from peft import get_peft_config, get_peft_model
from peft.optimizers import create_lorafa_optimizer
from transformers import AutoModelForCausalLM, LlamaConfig, get_cosine_schedule_with_warmup

BATCH, BUCKET, STEPS, CACHE_GIVEN_BACK = 4, 20, 5000, 10
ARTICLE = 768
"""Tokens to which the articles are cut that the base model reads before it is trained."""
RUN = 4
"""Buckets that are run, of 250."""
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 128256,
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_hidden_layers": 28,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131072,
    "tie_word_embeddings": True,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 128000,
    "eos_token_id": 128001,
    "rope_parameters": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 8192,
    },
}
"""meta-llama/Llama-3.2-3B, config.json."""


def base() -> torch.nn.Module:
    """The model, loaded straight onto the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        LlamaConfig(**MODEL, dtype="bfloat16").save_pretrained(folder)
        return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, device_map="cuda")


def updates(model: torch.nn.Module, name: str, adapter: dict) -> torch.optim.Optimizer:
    """AdamW, or the one of the method."""
    if name == "lora-fa":
        return create_lorafa_optimizer(
            model, r=adapter["r"], lora_alpha=adapter["lora_alpha"], lr=1e-4, weight_decay=0.1
        )
    return torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)


def lengths(longest: int) -> list[list[int]]:
    """Tokens of the longest answer of each batch, between one emptying of the cache and the next.

    Answers are drawn as the source says them to be (at most 1,300 characters, 210 tokens on
    average, buckets of 80 from long to short). Those buckets are run that begin with the longest
    batches, each behind the last batch of the one before: what it left lies in the cache's way.
    The first bucket of all meets what was cached before, as it does there.
    """
    drawn = random.Random(0)
    buckets = []
    for _ in range(STEPS // BUCKET):
        answers: list[float] = []
        while len(answers) < BUCKET * BATCH:
            characters = drawn.gauss(500, 350)
            if 120 < characters <= 1300:
                answers.append(characters * drawn.lognormvariate(0, 0.1))
        buckets.append(sorted(answers, reverse=True)[::BATCH])
    scale = longest / max(bucket[0] for bucket in buckets)
    hardest = sorted(range(1, len(buckets)), key=lambda at: -buckets[at][0])[:RUN]
    runs = [buckets[0][:CACHE_GIVEN_BACK]]
    for at in sorted(hardest):
        runs += [buckets[at - 1][-1:], buckets[at][:CACHE_GIVEN_BACK]]
    return [[round(answer * scale) for answer in run] for run in runs]


def padded(tokens: int) -> dict[str, torch.Tensor]:
    """A batch on the host: answers of about one length, so that all but one are padded."""
    mask = torch.ones(BATCH, tokens, dtype=torch.long)
    mask[1:, -1] = 0
    return {"input_ids": torch.ones_like(mask), "attention_mask": mask}


@torch.inference_mode()
def read_articles(model: torch.nn.Module) -> None:
    """The base model on other texts: what was frozen of an adapter needs gradients from then on."""
    model.eval()
    with getattr(model, "disable_adapter", contextlib.nullcontext)():
        ids = torch.ones(BATCH, ARTICLE, dtype=torch.long).to("cuda")
        logits = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        for words, answers in zip(logits, ids, strict=True):
            torch.nn.functional.cross_entropy(words[:-1], answers[1:], reduction="none")
    model.train()


def main(longest: str, *words: str) -> None:
    """Train."""
    adapter = json.loads(words[0]) if words and words[0].startswith("{") else {}
    options = dict(word.split("=", 1) for word in words if not word.startswith("{"))
    torch.nn.Linear(1, 1).to("cuda")
    at_first = torch.cuda.max_memory_reserved()
    model = base()
    if adapter:
        config = get_peft_config(adapter)
        model = get_peft_model(model, config, autocast_adapter_dtype=options.get("cast") != "no")
    optimizer = updates(model, options.get("optimizer", "adamw"), adapter)
    schedule = get_cosine_schedule_with_warmup(optimizer, STEPS // 10, STEPS)
    read_articles(model)
    step = 0
    for run in lengths(int(longest)):
        for tokens in run:
            step += 1
            batch = padded(tokens)
            # What the last step made is let go of where the script makes it anew.
            batch = {name: part.to("cuda") for name, part in batch.items()}
            labels = batch["input_ids"].clone()
            for row in range(1, BATCH):
                labels[row, tokens:] = -100
            batch["labels"] = labels
            items = batch["attention_mask"].sum().item()
            optimizer.zero_grad()
            outputs = model(**batch, num_items_in_batch=items)
            loss = outputs.loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if adapter.get("peft_type") in ("ADALORA", "ADAMSS"):
                model.base_model.update_and_allocate(step)
            loss.item()
        torch.cuda.empty_cache()
    reserved = torch.cuda.max_memory_reserved() - at_first
    print(f"reserved {reserved / 2**20:.1f} MiB, allocated {torch.cuda.memory_allocated()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
