"""What mixed precision means under layouts that gather weights, and what an answer says of it."""

import json

import pytest
import torch
import transformers

from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.question import check_names
from memcalc.report.answer import blocks
from memcalc.workload import layouts
from memcalc.workload.pipeline import find_layers, make_stage

GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 256, "n_layer": 8,
    "n_head": 2, "vocab_size": 99, "tie_word_embeddings": False,
}  # fmt: skip
HALF = {"param_dtype": "bfloat16", "reduce_dtype": "bfloat16"}
POLICY = {**HALF, "output_dtype": "bfloat16"}


def plan(model="gpt2", **settings):
    return make({"model": model, "batch": 2, "precision": "amp-bf16", **settings})


def answer(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(GPT2))
    answers = Answers()
    return answers.trace(plan(str(path), seq=64, **settings)).prediction


def lines(prediction):
    return [text for text in (getattr(block, "text", "") for block in blocks(prediction)) if text]


@pytest.mark.parametrize(
    ("settings", "given", "autocast"),
    [
        ({"parallel": "fsdp2"}, POLICY, False),
        ({"parallel": "hsdp=2x2"}, POLICY, False),
        ({"parallel": "tp=2,fsdp2=4"}, POLICY, False),
        ({"parallel": "fsdp1"}, HALF, True),
        ({"parallel": "fsdp2", "precision": "amp-fp16"}, dict.fromkeys(POLICY, "float16"), False),
        ({"parallel": "fsdp2", "precision": "bf16"}, {}, False),
        ({"parallel": "tp=2"}, {}, True),
        ({"parallel": "ddp", "devices": 2}, {}, True),
        ({"parallel": "fsdp2", "parallel_args": {"reduce_dtype": "float32"}},
         {**POLICY, "reduce_dtype": "float32"}, False),
        ({"parallel": "fsdp2", "parallel_args": {"param_dtype": "bf16"}},
         {**POLICY, "param_dtype": "bf16"}, False),
        ({"parallel": "fsdp2", "parallel_args": {"param_dtype": "none"}},
         {"param_dtype": "none"}, True),
        ({"parallel": "fsdp2", "parallel_args": {"autocast": True}}, POLICY, True),
    ],
)  # fmt: skip
def test_mixed_precision_of_gathered_weights_is_the_policy_that_accelerate_sets(
    settings, given, autocast
):
    asked = plan(**settings)
    check_names(asked)
    assert layouts.arguments(asked) == given
    assert layouts.autocasts(asked) is autocast


def test_the_policy_is_the_one_that_accelerates_own_code_makes():
    from accelerate.utils import FullyShardedDataParallelPlugin

    plugin = FullyShardedDataParallelPlugin(fsdp_version=2)
    plugin.set_mixed_precision("bf16")
    made = plugin.mixed_precision_policy
    assert {name: getattr(made, name) for name in POLICY} == dict.fromkeys(POLICY, torch.bfloat16)
    assert made.cast_forward_inputs is type(made)().cast_forward_inputs


def test_the_plain_loop_agrees_with_accelerates_under_fsdp2(tmp_path):
    own, theirs = (
        answer(tmp_path, devices=4, parallel="fsdp2", loop=loop) for loop in ("plain", "accelerate")
    )
    assert own.peak.requested == pytest.approx(theirs.peak.requested, rel=0.05)


def test_autocast_beside_fsdp2_is_named_with_its_size_and_its_option(tmp_path):
    chosen = {"param_dtype": "none"}
    found = answer(
        tmp_path, devices=4, parallel="fsdp2", parallel_args=chosen, checkpointing=True,
        optim="sgd",
    )  # fmt: skip
    copies = found.components["autocast_copies"]
    # Of each block the two products of attention and two of the feed-forward, with their biases.
    products = sum(256 * n + n for n in (768, 256, 1024)) + 1024 * 256 + 256
    assert copies == 7 * 2 * products, "the last of eight blocks is gathered at the peak"
    said = lines(found)[1]
    assert "of the peak are autocast's copies of weights" in said
    assert "--parallel-arg param_dtype=none" in said


def test_a_layout_over_one_gpu_says_which_option_is_missing(tmp_path):
    assert "1 GPU: add --devices 8" in lines(answer(tmp_path, parallel="fsdp2"))[1]


SMALL = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 2, "vocab_size": 99}
LANGUAGE = {
    "Llama": {"intermediate_size": 64, "num_key_value_heads": 2},
    "GPTNeoX": {"intermediate_size": 64, "hidden_dropout": 0.5},
    "Falcon": {"alibi": False},
    "Bloom": {},
}


@pytest.mark.parametrize("name", LANGUAGE)
def test_stages_of_any_model_of_one_embedding_and_one_list_of_layers_give_its_logits(name):
    config = getattr(transformers, f"{name}Config")(**SMALL, **LANGUAGE[name])
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    first = make_stage(model, range(2), first=True, last=False)
    last = make_stage(model, range(2, 3), first=False, last=True)
    weights = {id(one) for one in model.parameters()}
    assert {id(one) for part in (first, last) for one in part.parameters()} == weights
    tokens = torch.arange(6).view(2, 3)
    assert torch.equal(last(first(tokens)), model(tokens).logits)


def test_a_model_of_two_embeddings_has_no_stages():
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2))
    with pytest.raises(UsageError, match="not built of one embedding, one list of layers"):
        find_layers(model)
