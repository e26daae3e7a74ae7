"""Real weights: safetensors of a local folder, and nothing that has to be unpickled."""

import json

import pytest
import torch

from memcalc.catalog.plan import make
from memcalc.errors import MeasureError
from memcalc.measure.runs.run import Options, measure
from memcalc.workload.model import with_weights

CONFIG = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
          "intermediate_size": 64, "vocab_size": 50, "max_position_embeddings": 64}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(1)
    model = BertForSequenceClassification(BertConfig(**CONFIG))
    model.save_pretrained(tmp_path / "model")
    return tmp_path / "model", model


def plan_of(folder):
    return make({"model": str(folder), "target": "cpu", "batch": 2, "seq": 8})


def test_the_weights_are_those_of_the_folder(folder):
    path, saved = folder
    loaded, task = with_weights(plan_of(path))
    assert task.name == "sequence-classification"
    for name, tensor in saved.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor)
    measured = measure(plan_of(path), Options(device="cpu", steps=2, weights=True))
    assert measured.weights == sum(p.numel() * 4 for p in saved.parameters())


def test_pickled_weights_are_not_read(folder):
    path, saved = folder
    for file in path.glob("*.safetensors"):
        file.unlink()
    torch.save(saved.state_dict(), path / "pytorch_model.bin")
    with pytest.raises(MeasureError, match="Leave --weights out"):
        with_weights(plan_of(path))


def test_code_in_the_folder_is_not_run(folder):
    from memcalc.errors import UsageError

    path, _ = folder
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "x.Y"}}))
    with pytest.raises(UsageError, match="does not run"):
        with_weights(plan_of(path))
