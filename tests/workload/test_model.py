"""Models are built wholly on the device that they are asked for."""

import json
import pathlib
from functools import partial

import pytest
import torch
from transformers import BartConfig, BartForConditionalGeneration, GPT2Config, GPT2LMHeadModel

import memcalc
from memcalc.catalog import models
from memcalc.catalog.plan import make
from memcalc.engine.program import parameters_on_meta
from memcalc.estimation.estimate import answers
from memcalc.workload import layerdrop, tasks
from memcalc.workload.blocks import to_empty
from memcalc.workload.model import attach, build
from memcalc.workload.prepare import checkpoint

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2}


def test_parameters_that_no_default_device_moves_are_taken_along(tmp_path):
    # Where frames are masked, the weights of what stands there are made by torch.Tensor(n).
    config = {"model_type": "wav2vec2", "num_hidden_layers": 1, **SMALL, "mask_time_prob": 0.1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = models.find(str(tmp_path))
    with torch.device("meta"):
        model = build(source, tasks.choose(source, "ctc"))
    assert all(parameter.is_meta for parameter in model.parameters())
    # With real memory they stay what they are.
    real = build(source, tasks.choose(source, "ctc"))
    assert not any(parameter.is_meta for parameter in real.parameters())
    assert len(list(real.parameters())) == len(list(model.parameters()))


@pytest.fixture(scope="module")
def found(small_model, once):
    def ask(precision):
        return memcalc.estimate(
            small_model, precision=precision, loop="trainer", batch=2, seq=64, gpu="4090"
        )

    with once("half weights"):
        return {name: ask(name) for name in ("bf16", "bf16+amp", "amp-bf16", "fp16")}


def test_bf16_weights_under_autocast_are_half_as_large_and_compute_in_fp32_where_autocast_does(
    found,
):
    plain, mixed, whole = (found[name].components for name in ("bf16", "bf16+amp", "amp-bf16"))
    assert mixed["weights"] == plain["weights"] == whole["weights"] // 2
    assert found["bf16+amp"].peak.requested > found["bf16"].peak.requested


def test_the_trainers_own_fp16_is_told_apart_from_weights_in_fp16(found):
    assert "the Trainer's fp16=True is --precision amp-fp16" in " ".join(found["fp16"].assumptions)
    assert "the Trainer's" not in " ".join(found["bf16+amp"].assumptions)


BART = {
    "model_type": "bart", "vocab_size": 100, "d_model": 32, "encoder_layers": 2,
    "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2,
}  # fmt: skip


def test_no_layer_is_left_out_inside_and_shares_are_what_they_were_outside():
    with torch.device("meta"):
        model = BartForConditionalGeneration(BartConfig(**BART, encoder_layerdrop=0.9))
    encoder = model.get_encoder()
    with layerdrop.off(model):
        assert encoder.layerdrop == encoder.config.encoder_layerdrop == 0
        assert not list(layerdrop.notes(model))
    assert encoder.layerdrop == encoder.config.encoder_layerdrop == 0.9
    assert list(layerdrop.notes(model)) == ["no layer is dropped at random (layerdrop 0.9)"]


def test_an_estimate_has_all_layers_and_says_so(tmp_path):
    plans = []
    for share in (0.0, 1.0):
        path = tmp_path / f"{share}.json"
        told = {"encoder_layerdrop": share, "decoder_layerdrop": share}
        path.write_text(json.dumps({**BART, **told}))
        plans.append(make({"model": str(path), "seq": 16}))
    none, all_of_them = answers(plans, use_cache=False)
    assert none.peak == all_of_them.peak
    assert not [text for text in none.assumptions if "at random" in text]
    assert "no layer is dropped at random (layerdrop 1)" in all_of_them.assumptions


def test_adapters_under_reentrant_checkpointing_get_gradients():
    config = GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=8, vocab_size=16)
    model = GPT2LMHeadModel(config).train()
    model.requires_grad_(False)
    model.transformer.h[0].mlp.c_fc.weight.requires_grad_(True)
    # transformers 4 enables it so by itself.
    enable = model.gradient_checkpointing_enable
    model.gradient_checkpointing_enable = partial(enable, {"use_reentrant": True})
    checkpoint(model, make({"model": "gpt2", "checkpointing": True, "lora": "r=2"}))
    tokens = torch.zeros(1, 4, dtype=torch.long)
    model(tokens, labels=tokens).loss.backward()
    assert model.transformer.h[0].mlp.c_fc.weight.grad is not None


def test_checkpointing_is_of_the_variant_that_was_named():
    config = GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=8, vocab_size=16)
    for named in (True, False):
        model = GPT2LMHeadModel(config)
        checkpoint(model, make({"model": "gpt2", "checkpointing": True, "use_reentrant": named}))
        told = [block._gradient_checkpointing_func.keywords for block in model.transformer.h]
        assert told == [{"use_reentrant": named}] * 2


@pytest.mark.parametrize("autocast", [True, False])
def test_adapters_of_half_weights_are_in_fp32_unless_they_are_cast(autocast):
    config = GPT2Config(n_embd=8, n_layer=1, n_head=2, n_positions=8, vocab_size=16)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config).bfloat16()
    adapted = attach(model, "r=2", autocast=autocast)
    dtypes = {p.dtype for p in adapted.parameters() if p.requires_grad}
    assert dtypes == {torch.float32 if autocast else torch.bfloat16}


@pytest.mark.parametrize("told", [True, False])
def test_a_head_is_tied_unless_the_config_says_that_it_is_not(tmp_path, told):
    config = {"model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 1}
    config |= {"vocab_size": 50, "tie_word_embeddings": told, "feed_forward_proj": "gated-gelu"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    source = models.find(str(tmp_path))
    model = build(source, tasks.choose(source, "seq2seq-lm"))
    to_empty(model, "cpu", lambda placed: lambda filled: None)
    assert (model.lm_head.weight is model.shared.weight) == told
    assert model.encoder.embed_tokens.weight is model.shared.weight


class Experts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        with torch.device("cpu"):
            self.up = torch.nn.Parameter(torch.empty(1 << 20, 1 << 22))
            self.down = torch.nn.Parameter(torch.zeros((1 << 22, 1 << 20)))
        self.router = torch.nn.Linear(8, 1 << 40)
        self.register_buffer("scale", torch.arange(4.0))


def test_parameters_that_no_host_can_hold_are_built_and_buffers_keep_their_values():
    with parameters_on_meta():
        model = Experts()
    assert all(parameter.is_meta for parameter in model.parameters())
    assert sum(p.nbytes for p in model.parameters()) > 1 << 45
    assert model.scale.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_model_of_many_parameters_leaves_no_heap_behind_that_a_fork_would_be_refused_for():
    def heap():
        return next(
            int(end, 16) - int(begin, 16)
            for line in pathlib.Path("/proc/self/maps").read_text().splitlines()
            if line.endswith("[heap]")
            for begin, end in [line.split()[0].split("-")]
        )

    before, small = heap(), []
    with parameters_on_meta():
        for _ in range(200):
            torch.nn.Linear(2048, 2048)
            # Settles where a parameter was, so that the next one would lie behind it.
            small.append(torch.zeros(300))
    assert heap() - before < 200 << 20
