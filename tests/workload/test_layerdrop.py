"""Layers that are left out at random: an answer is of those steps that leave none out."""

import json

import torch
from transformers import BartConfig, BartForConditionalGeneration

from memcalc.catalog.plan import make
from memcalc.estimation.estimate import answers
from memcalc.workload import layerdrop

BART = {
    "model_type": "bart",
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
}


def test_no_layer_is_left_out_inside_and_shares_are_what_they_were_outside():
    with torch.device("meta"):
        model = BartForConditionalGeneration(BartConfig(**BART, encoder_layerdrop=0.9))
    encoder = model.get_encoder()
    with layerdrop.off(model):
        assert encoder.layerdrop == encoder.config.encoder_layerdrop == 0
        assert not list(layerdrop.said(model))
    assert encoder.layerdrop == encoder.config.encoder_layerdrop == 0.9
    assert list(layerdrop.said(model)) == ["no layer is dropped at random (layerdrop 0.9)"]


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
