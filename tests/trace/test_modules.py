"""What backward makes is put down to the module whose forward made the node."""

import pytest

from memcalc.catalog.plan import make
from memcalc.estimation.estimate import Tracer, estimate

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


RECURRENT = """
import torch

class Reads(torch.nn.Module):
    def __init__(self, kind="LSTM"):
        super().__init__()
        self.layer = getattr(torch.nn, kind)(8, 8)

    def forward(self, x):
        out = self.layer(x)
        return (out[0] if isinstance(out, tuple) else out).sum()

def cell():
    return Reads("LSTMCell")
"""


@pytest.mark.parametrize("name", ["Reads", "cell"])
def test_recurrent_layers_and_cells_leave_nothing_uncounted(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recurrent.py").write_text(RECURRENT)
    answer = estimate(f"recurrent.py:{name}", inputs=["x=float32[4,8]"], use_cache=False)
    assert not any("recurrent" in text for text in answer.uncounted)
