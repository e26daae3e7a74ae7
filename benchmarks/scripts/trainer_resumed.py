"""A Trainer that keeps its last two checkpoints, another that resumes from them, the best loaded."""

import os

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

config = LlamaConfig(
    hidden_size=256,
    intermediate_size=512,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    vocab_size=2048,
)
ids = list(range(64))
rows = [{"input_ids": ids, "labels": ids} for _ in range(32)]


def trainer(steps, **more):
    arguments = TrainingArguments(
        "out",
        per_device_train_batch_size=4,
        max_steps=steps,
        save_steps=2,
        save_total_limit=2,
        bf16=True,
        report_to=[],
        disable_tqdm=True,
        **more,
    )
    return Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, eval_dataset=rows)


last = get_last_checkpoint("out") if os.path.isdir("out") else None
trainer(4).train(resume_from_checkpoint=last)
print(sorted(os.listdir("out")))
again = trainer(6, eval_strategy="steps", eval_steps=2, load_best_model_at_end=True)
again.train(resume_from_checkpoint=True)
print(again.state.global_step, get_last_checkpoint("out"))
trainer(7).train(resume_from_checkpoint=os.path.join("out", "checkpoint-6"))
