"""TRL: SFTTrainer on texts.

Requires: trl datasets
"""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

t = Tokenizer(
    models.WordLevel(
        {w: i for i, w in enumerate(["<pad>", "<unk>", "</s>", *"abcdefghij"])}, unk_token="<unk>"
    )
)
t.pre_tokenizer = pre_tokenizers.Whitespace()
tok = PreTrainedTokenizerFast(
    tokenizer_object=t, pad_token="<pad>", unk_token="<unk>", eos_token="</s>"
)
from trl import SFTConfig, SFTTrainer

model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_embd=128, n_layer=2, n_head=2, n_positions=128))
data = Dataset.from_list([{"text": "a b c d e f g h i j " * 5}] * 64)
trainer = SFTTrainer(
    model,
    SFTConfig(
        "out",
        max_steps=5,
        per_device_train_batch_size=4,
        report_to="none",
        max_length=64,
        bf16=True,
    ),
    train_dataset=data,
    processing_class=tok,
)
trainer.train()
