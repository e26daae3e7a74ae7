"""Models are built wholly on the device that they are asked for."""

import json

import torch

from memcalc.catalog import models
from memcalc.workload import tasks
from memcalc.workload.model import build

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
