"""What the layers of a quantized base hold sums to what is loaded."""

import json

import pytest

import memcalc
from memcalc.advice.explain.layers import layers
from memcalc.catalog import models
from memcalc.catalog.plan import make
from memcalc.estimation.estimate import Tracer
from memcalc.records.trace import Component


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    config = models.find("HuggingFaceTB/SmolLM2-135M").config | {"num_hidden_layers": 6}
    path = tmp_path_factory.mktemp("model") / "config.json"
    path.write_text(json.dumps(config))
    with Tracer() as tracer:
        return tracer.trace(make({"model": str(path), "quant": "nf4-dq", "batch": 1, "seq": 8}))


def test_layers_sum_to_the_components_at_the_peak(traced):
    kinds = layers(traced.trace.inventory)
    packed = sum(kind.count * kind.tensors[0].bytes for kind in kinds if kind.quantised)
    constants = sum(kind.count * held.bytes for kind in kinds for held in kind.tensors[1:])
    held = traced.prediction.components
    assert packed == held[Component.QUANTISED_WEIGHTS]
    assert constants == held[Component.QUANTISATION_CONSTANTS]


def test_quantised_layers_come_first_each_kind_once(traced):
    kinds = layers(traced.trace.inventory)
    assert [kind.quantised for kind in kinds] == sorted((k.quantised for k in kinds), reverse=True)
    assert kinds[0].name == "model.layers.[0-5].self_attn.q_proj"
    assert (kinds[0].count, kinds[0].shape) == (6, (576, 576))
    assert 0.5 < kinds[0].per_weight < 0.53
    assert not any("lora" in kind.name for kind in kinds)


def test_a_model_that_is_not_quantised_has_no_such_list(small_model):
    assert memcalc.explain(small_model, remedies=False, batch=1, seq=8).layers == ()
