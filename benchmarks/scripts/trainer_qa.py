"""A Trainer of question answering: fp16, fused AdamW, evaluation between steps, predictions."""

import torch
from torch.utils.data import Dataset
from transformers import (
    BertConfig,
    BertForQuestionAnswering,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)


class D(Dataset):
    def __len__(s):
        return 48

    def __getitem__(s, i):
        n = 64 + (i * 7) % 64
        return dict(
            input_ids=torch.randint(5, 3000, (128,)),
            attention_mask=(torch.arange(128) < n).long(),
            start_positions=torch.tensor(i % 60),
            end_positions=torch.tensor(i % 60 + 3),
        )


def metrics(p):
    return {"exact": float((p.predictions[0].argmax(-1) == p.label_ids[0]).mean())}


class Stop(TrainerCallback):
    def on_evaluate(s, a, st, c, metrics=None, **k):
        print("eval", sorted(metrics))


m = BertForQuestionAnswering(
    BertConfig(
        vocab_size=3000,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    )
)
a = TrainingArguments(
    "out",
    per_device_train_batch_size=8,
    gradient_accumulation_steps=2,
    num_train_epochs=1,
    eval_strategy="steps",
    eval_steps=2,
    logging_steps=1,
    fp16=True,
    optim="adamw_torch_fused",
    lr_scheduler_type="cosine",
    warmup_steps=1,
    save_strategy="no",
    report_to=[],
    label_smoothing_factor=0.0,
    max_grad_norm=0.5,
    torch_empty_cache_steps=2,
)
t = Trainer(m, a, train_dataset=D(), eval_dataset=D(), compute_metrics=metrics, callbacks=[Stop()])
t.train()
print(t.evaluate()["eval_loss"])
print(t.predict(D()).predictions[0].shape)
