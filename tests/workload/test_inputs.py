"""Synthetic batches are such as a tokenizer hands over, where a model's code looks at them."""

import json

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.estimate import Tracer

TINY = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99,
    "pad_token_id": 1, "eos_token_id": 2, "is_encoder_decoder": True,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "head"), [("bart", "Bart"), ("mbart", "MBart")])
def test_texts_that_an_encoder_decoder_classifies_end_and_are_no_padding(tmp_path, kind, head):
    architecture = f"{head}ForSequenceClassification"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**TINY, "model_type": kind, "architectures": [architecture]}))
    with Tracer() as tracer:
        traced = tracer.trace(make({"model": str(config), "batch": 2, "seq": 16}))
    assert traced.prediction.peak.allocated > 0
