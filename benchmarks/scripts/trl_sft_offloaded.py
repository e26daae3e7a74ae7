"""Fine-tuning with TRL's activation offloading, which knows tensors by where they lie."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import SFTConfig, SFTTrainer

vocabulary = {f"w{i}": i + 4 for i in range(500)}
special = {"<pad>": 0, "<eos>": 1, "<unk>": 2, "<bos>": 3}
t = Tokenizer(models.WordLevel({**vocabulary, **special}, unk_token="<unk>"))
t.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
tok = PreTrainedTokenizerFast(
    tokenizer_object=t, pad_token="<pad>", eos_token="<eos>", bos_token="<bos>", unk_token="<unk>"
)
m = LlamaForCausalLM(
    LlamaConfig(
        vocab_size=504,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=3,
    )
)


def words(start, count):
    return " ".join(f"w{(start * 7 + j * 3) % 500}" for j in range(count))


ds = Dataset.from_list(
    [
        {"prompt": words(i, 8 + i % 5) + " ", "completion": words(i + 3, 12 + i % 29)}
        for i in range(64)
    ]
)
a = SFTConfig(
    "out",
    per_device_train_batch_size=4,
    max_length=96,
    max_steps=3,
    report_to=[],
    bf16=False,
    logging_steps=1,
    save_strategy="no",
    packing=True,
    packing_strategy="wrapped",
    activation_offloading=True,
    gradient_checkpointing=False,
    completion_only_loss=True,
    optim="adamw_8bit",
)
SFTTrainer(model=m, args=a, train_dataset=ds, processing_class=tok).train()
