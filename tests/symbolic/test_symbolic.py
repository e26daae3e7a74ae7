"""What a symbolic trace says of any batch and sequence is what a trace there says, to the byte."""

import json

import pytest

from memcalc.catalog import models

SMALL = {
    "distilbert-base-cased": {"n_layers": 2, "dim": 96, "n_heads": 4, "vocab_size": 999},
    "gpt2": {"n_layer": 4, "n_embd": 64, "n_head": 4, "vocab_size": 999},
    "t5-small": {"num_layers": 1, "num_decoder_layers": 1, "d_model": 64, "vocab_size": 999},
    "TinyLlama/TinyLlama-1.1B": {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 999,
    },
    "google/vit-base-patch16-224": {"num_hidden_layers": 2, "image_size": 64},
}
CASES = [
    (
        "distilbert-base-cased",
        {"gpu": "l4", "precision": "amp-fp16", "loop": "trainer", "grad_accum": 2},
        "t4",
    ),
    ("gpt2", {"gpu": "a100-40gb", "precision": "bf16", "checkpointing": True}, "b200"),
    ("t5-small", {"gpu": "a100-80gb", "precision": "amp-bf16", "seq": 64}, "l40s"),
    ("TinyLlama/TinyLlama-1.1B", {"gpu": "t4", "lora": "r=4,target=all-linear"}, "v100-16gb"),
    ("google/vit-base-patch16-224", {"gpu": "t4", "optim": "sgd"}, "l4"),
]


def compared(*question):
    from tests.symbolic.compare import compare

    return compare(*question)


DEEP = {"n_layers": 4, "num_layers": 2, "num_decoder_layers": 2, "num_hidden_layers": 4}
"""From four repetitions on a symbolic trace is folded; GPT-2 always has them."""


_BY_DAY = [
    pytest.param(index, id=f"{name} {plan}", marks=[] if index == 0 else [pytest.mark.nightly])
    for index, (name, plan, _) in enumerate(CASES)
]


@pytest.mark.parametrize("index", _BY_DAY)
@pytest.mark.parametrize("deep", [False, pytest.param(True, marks=pytest.mark.nightly)])
def test_a_symbolic_trace_equals_a_trace_wherever_it_holds(forked, examples, tmp_path, index, deep):
    name, plan, other = CASES[index]
    config = {**models.find(name).config, **SMALL[name]}
    if deep:
        config |= {key: depth for key, depth in DEEP.items() if key in SMALL[name]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    plan = {"model": str(tmp_path), "batch": 4, **plan}
    assert forked(compared, plan, examples(4), other)["points"] >= 2


def held(*question):
    from tests.symbolic.compare import held_on

    return held_on(*question)


@pytest.mark.nightly
def test_experts_whose_products_run_otherwise_on_another_gpu_are_learnt_there_anew(
    forked, tmp_path
):
    sizes = {"hidden_size": 32, "intermediate_size": 32, "vocab_size": 99, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 4}
    config = {"model_type": "granitemoe", "architectures": ["GraniteMoeForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps({**config, **sizes, **heads}))
    plan = {"model": str(tmp_path), "batch": 4, "seq": 32, "attention": "eager", "optim": "sgd"}
    assert forked(held, {**plan, "gpu": "a100-40gb"}, ["h100-sxm", "t4"]) == ["h100-sxm"]
