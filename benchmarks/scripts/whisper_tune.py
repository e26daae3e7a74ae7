"""Fine-tuning Whisper: frozen encoder, Seq2SeqTrainer, gradient checkpointing, fp16."""

from dataclasses import dataclass

import torch
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    WhisperConfig,
    WhisperForConditionalGeneration,
)


class Speech(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, at):
        g = torch.Generator().manual_seed(at)
        n = int(torch.randint(5, 40, (), generator=g))
        return {
            "input_features": torch.randn(80, 3000, generator=g),
            "labels": torch.randint(10, 2000, (n,), generator=g).tolist(),
        }


@dataclass
class Collator:
    start: int

    def __call__(self, rows):
        width = max(len(row["labels"]) for row in rows)
        labels = torch.full((len(rows), width), -100)
        for i, row in enumerate(rows):
            labels[i, : len(row["labels"])] = torch.tensor(row["labels"])
        if (labels[:, 0] == self.start).all().item():
            labels = labels[:, 1:]
        return {
            "input_features": torch.stack([row["input_features"] for row in rows]),
            "labels": labels,
        }


config = WhisperConfig(
    vocab_size=2000,
    d_model=192,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=4,
    decoder_attention_heads=4,
    encoder_ffn_dim=768,
    decoder_ffn_dim=768,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=3,
    suppress_tokens=None,
    begin_suppress_tokens=None,
)
model = WhisperForConditionalGeneration(config)
model.freeze_encoder()
model.config.use_cache = False
arguments = Seq2SeqTrainingArguments(
    output_dir="whisper",
    per_device_train_batch_size=4,
    gradient_accumulation_steps=2,
    learning_rate=1e-5,
    warmup_steps=2,
    max_steps=3,
    gradient_checkpointing=True,
    gradient_checkpointing_kwargs={"use_reentrant": False},
    fp16=True,
    dataloader_num_workers=2,
    remove_unused_columns=False,
    label_names=["labels"],
    report_to=[],
    disable_tqdm=True,
)
trainer = Seq2SeqTrainer(
    model=model,
    args=arguments,
    train_dataset=Speech(40),
    data_collator=Collator(config.decoder_start_token_id),
)
trainer.train()
