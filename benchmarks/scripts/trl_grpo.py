"""Group relative policy optimization: completions are drawn, rewarded and trained on."""

from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

t = Tokenizer(
    models.WordLevel(
        {**{f"w{i}": i + 4 for i in range(500)}, "<pad>": 0, "<eos>": 1, "<unk>": 2, "<bos>": 3},
        unk_token="<unk>",
    )
)
t.pre_tokenizer = pre_tokenizers.Whitespace()
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
ds = Dataset.from_list(
    [{"prompt": " ".join(f"w{(i * 7 + j) % 500}" for j in range(12))} for i in range(32)]
)
a = GRPOConfig(
    "out",
    per_device_train_batch_size=8,
    num_generations=4,
    max_completion_length=24,
    max_steps=2,
    report_to=[],
    bf16=False,
    logging_steps=1,
    beta=0.0,
    save_strategy="no",
    use_cpu=False,
)
tr = GRPOTrainer(
    model=m,
    reward_funcs=lambda completions, **k: [float(len(c)) for c in completions],
    args=a,
    train_dataset=ds,
    processing_class=tok,
)
tr.train()
