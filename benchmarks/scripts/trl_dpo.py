"""TRL's DPO with a reference model."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer

words = {"<pad>": 0, "<eos>": 1, "<unk>": 2} | {f"w{n}": n + 3 for n in range(500)}
core = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
core.pre_tokenizer = pre_tokenizers.Whitespace()
tokenizer = PreTrainedTokenizerFast(
    tokenizer_object=core, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)
config = LlamaConfig(
    hidden_size=256,
    intermediate_size=704,
    num_hidden_layers=3,
    num_attention_heads=8,
    num_key_value_heads=2,
    vocab_size=8000,
)
chosen, rejected = (" ".join(f"w{n % 500}" for n in range(count)) for count in (120, 90))
trainer = DPOTrainer(
    model=LlamaForCausalLM(config),
    ref_model=LlamaForCausalLM(config),
    args=DPOConfig(
        output_dir="out",
        per_device_train_batch_size=4,
        max_steps=3,
        bf16=True,
        max_length=256,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    ),
    train_dataset=Dataset.from_list(
        [{"prompt": "w1 w2 w3", "chosen": chosen, "rejected": rejected} for _ in range(32)]
    ),
    processing_class=tokenizer,
)
trainer.train()
