"""TRL KTO, with a reference model and desirable and undesirable answers."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl.experimental.kto import KTOConfig, KTOTrainer

v = {"<pad>": 0, "<eos>": 1, "<unk>": 2, **{f"w{i}": i + 3 for i in range(300)}}
t = Tokenizer(models.WordLevel(v, unk_token="<unk>"))
t.pre_tokenizer = pre_tokenizers.Whitespace()
tok = PreTrainedTokenizerFast(
    tokenizer_object=t, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>"
)


def model():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=320,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
        )
    )


ds = Dataset.from_list(
    [
        {
            "prompt": f"w{i} w{i + 1}",
            "completion": f" w{i * 2 % 300} w{i * 3 % 300} w5",
            "label": bool(i % 2),
        }
        for i in range(32)
    ]
)
KTOTrainer(
    model(),
    model(),
    args=KTOConfig(
        output_dir="o",
        per_device_train_batch_size=4,
        max_steps=3,
        report_to="none",
        logging_steps=1,
        bf16=True,
    ),
    train_dataset=ds,
    processing_class=tok,
).train()
