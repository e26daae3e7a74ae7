"""A Trainer with a loss of its own, fp16 and reentrant checkpointing."""

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainingArguments,
    default_data_collator,
)

model = GPT2LMHeadModel(
    GPT2Config(n_layer=4, n_embd=256, n_head=4, vocab_size=5000, n_positions=256)
)
data = [{"input_ids": list(range(256)), "labels": list(range(256))} for _ in range(40)]


class Mine(Trainer):
    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        out = model(**inputs)
        sh = out.logits[..., :-1, :].contiguous()
        lb = inputs["labels"][..., 1:].contiguous()
        loss = torch.nn.functional.cross_entropy(sh.view(-1, sh.size(-1)), lb.view(-1))
        return (loss, out) if return_outputs else loss


args = TrainingArguments(
    output_dir="o",
    per_device_train_batch_size=8,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": True},
    max_steps=3,
    fp16=True,
    optim="adamw_torch",
    max_grad_norm=0.5,
    logging_steps=1,
    report_to=[],
    save_steps=2,
    disable_tqdm=True,
)
Mine(model=model, args=args, train_dataset=data, data_collator=default_data_collator).train()
