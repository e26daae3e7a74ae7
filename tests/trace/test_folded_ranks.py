"""Repeated layers fold under wrappers that shard them."""

import json

import pytest

import memcalc
from memcalc.catalog import models
from memcalc.errors import UsageError

SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 16, "vocab_size": 512}


@pytest.mark.parametrize("checkpointing", [True, pytest.param(False, marks=pytest.mark.nightly)])
def test_sixteen_layers_under_fsdp2_are_traced_through_a_few(tmp_path, checkpointing):
    config = {**models.find("meta-llama/Llama-3.2-1B").config, **SMALL, "head_dim": 8}
    path = tmp_path / "deep.json"
    path.write_text(json.dumps({**config, "num_attention_heads": 8, "num_key_value_heads": 8}))
    found = memcalc.estimate(
        str(path), batch=1, seq=32, devices=8, parallel="fsdp2", checkpointing=checkpointing
    )
    assert any("repeated layers" in said for said in found.assumptions)
    # Each layer is gathered forwards and backwards, what stays of the model once; in a ring of
    # eight each GPU sends seven parts of eight.
    sent = {one.collective: (one.calls, one.bytes) for one in found.sent}
    rest = (SMALL["vocab_size"] + 1) * SMALL["hidden_size"]
    gathered = (2 * found.parameters - rest) * 4 * 7 // 8
    assert sent["all-gather"] == (2 * 16 + 1, gathered)
    assert sent["reduce-scatter"] == (16 + 1, found.parameters * 4 * 7 // 8)
    assert found.traffic == sum(size for _, size in sent.values())


@pytest.mark.nightly
def test_adapters_are_divided_with_their_layers_for_the_first_rank_and_the_last(tmp_path):
    config = {**models.find("meta-llama/Llama-3.2-1B").config, **SMALL, "head_dim": 8}
    path = tmp_path / "adapted.json"
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "num_hidden_layers": 2}
    path.write_text(json.dumps({**config, **heads}))
    # Shards of three are uneven: both ranks are traced, each with process groups of its own.
    asked = {"batch": 1, "seq": 32, "parallel": "tp=2,fsdp2=3", "lora": "r=8,target=all-linear"}
    found = memcalc.estimate(str(path), **asked)
    assert any("this is rank" in said for said in found.assumptions)
    with pytest.raises(UsageError, match="adapters"):
        memcalc.estimate(str(path), **asked, parallel_args={"sequence_parallel": True})
