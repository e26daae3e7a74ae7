"""TRL's reward model on pairs of texts."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForSequenceClassification, PreTrainedTokenizerFast
from trl import RewardConfig, RewardTrainer

words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{n}": n + 3 for n in range(500)}
core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.Whitespace()
tok = PreTrainedTokenizerFast(
    tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
cfg = LlamaConfig(
    hidden_size=192,
    intermediate_size=512,
    num_hidden_layers=3,
    num_attention_heads=6,
    vocab_size=600,
    num_labels=1,
    pad_token_id=0,
)


def t(n):
    return " ".join(f"w{i % 500}" for i in range(n))


ds = Dataset.from_list([{"chosen": t(60), "rejected": t(40)} for _ in range(32)])
RewardTrainer(
    model=LlamaForSequenceClassification(cfg),
    args=RewardConfig(
        output_dir="o",
        per_device_train_batch_size=4,
        max_steps=3,
        bf16=True,
        max_length=128,
        report_to=[],
        disable_tqdm=True,
        save_strategy="no",
        logging_steps=1,
    ),
    processing_class=tok,
    train_dataset=ds,
).train()
