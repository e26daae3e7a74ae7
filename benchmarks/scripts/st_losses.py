"""sentence-transformers' Trainer: multiple negatives ranking with a cached loss and matryoshka."""

import tempfile

from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
    losses,
)
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

words = [f"w{n}" for n in range(800)]
vocabulary = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *words])}
raw = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
raw.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=raw, pad_token="[PAD]", unk_token="[UNK]", model_max_length=128
)
folder = tempfile.mkdtemp()
BertModel(
    BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
    )
).save_pretrained(folder)
tokenizer.save_pretrained(folder)
body = Transformer(folder, max_seq_length=96)
model = SentenceTransformer(modules=[body, Pooling(256, pooling_mode="mean")])


def text(n):
    return " ".join(words[(13 * n + k * k) % 800] for k in range(8 + n % 30))


train = Dataset.from_dict(
    {"anchor": [text(n) for n in range(96)], "positive": [text(n + 5) for n in range(96)]}
)
inner = losses.CachedMultipleNegativesRankingLoss(model, mini_batch_size=8)
trainer = SentenceTransformerTrainer(
    model=model,
    args=SentenceTransformerTrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=32,
        max_steps=3,
        fp16=True,
        learning_rate=2e-5,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=train,
    loss=inner,
)
trainer.train()
vectors = model.encode([text(n) for n in range(40)], batch_size=16, convert_to_tensor=True)
print(model.similarity(vectors, vectors).shape)
