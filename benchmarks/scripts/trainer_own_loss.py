"""A Trainer with a loss of its own, noisy embeddings, batches grouped by length, and evaluation."""

import random

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Trainer,
    TrainingArguments,
)

t = Tokenizer(
    models.WordLevel(
        {**{f"w{i}": i + 4 for i in range(2000)}, "<pad>": 0, "<eos>": 1, "<unk>": 2, "<bos>": 3},
        unk_token="<unk>",
    )
)
t.pre_tokenizer = pre_tokenizers.Whitespace()
tok = PreTrainedTokenizerFast(
    tokenizer_object=t, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
random.seed(1)
rows = [
    tok(" ".join(f"w{random.randrange(2000)}" for _ in range(random.randint(20, 160))))
    for _ in range(40)
]
rows = [{**r, "labels": list(r["input_ids"])} for r in rows]


class T(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, **kw):
        out = model(**{k: v for k, v in inputs.items() if k != "labels"})
        lg = out.logits[:, :-1].float()
        y = inputs["labels"][:, 1:]
        nll = torch.nn.functional.cross_entropy(
            lg.flatten(0, 1), y.flatten(), ignore_index=-100, reduction="none"
        ).view(y.shape)
        w = torch.where(y > 1000, 2.0, 1.0)
        loss = (nll * w).sum() / (y != -100).sum()
        return (loss, out) if return_outputs else loss


m = Qwen2ForCausalLM(
    Qwen2Config(
        vocab_size=2004,
        hidden_size=256,
        intermediate_size=688,
        num_hidden_layers=4,
        num_attention_heads=8,
        num_key_value_heads=2,
    )
)
a = TrainingArguments(
    "o",
    per_device_train_batch_size=4,
    per_device_eval_batch_size=8,
    num_train_epochs=1,
    bf16=True,
    neftune_noise_alpha=5,
    train_sampling_strategy="group_by_length",
    eval_strategy="epoch",
    eval_accumulation_steps=1,
    optim="adamw_torch",
    weight_decay=0.1,
    max_grad_norm=1.0,
    report_to=[],
    save_strategy="epoch",
    logging_steps=3,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    dataloader_num_workers=2,
    remove_unused_columns=True,
)
t = T(
    m,
    a,
    train_dataset=rows,
    eval_dataset=rows[:10],
    data_collator=DataCollatorForSeq2Seq(tok, pad_to_multiple_of=8),
)
t.train()
t.save_model("final")
