"""What backward makes is put down to the module whose forward made the node."""

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.estimate import Tracer

MAKES = {
    "native_layer_norm_backward": ("layer_norm", "LayerNorm"),
    "gelu_backward": ("activation",),
    "embedding_dense_backward": ("embeddings",),
}


@pytest.fixture(scope="module")
def storages():
    settings = {"model": "distilbert-base-cased", "batch": 1, "seq": 16}
    with Tracer(use_cache=False) as tracer:
        return tracer.trace(make(settings)).trace.storages


@pytest.mark.parametrize("op", MAKES)
def test_a_gradient_belongs_to_the_module_that_ran_forward_not_to_the_next_one(storages, op):
    modules = {storage.module for storage in storages if storage.op == op}
    assert modules
    for module in modules:
        assert module.split(".")[-1].endswith(MAKES[op]), module
