"""Operations are counted as PyTorch counts them, whatever little of a step is run for that."""

import torch
from torch.utils.flop_counter import FlopCounterMode

from memcalc.catalog.plan import make
from memcalc.engine.flops import Counter
from memcalc.estimation.answers import Answers
from tests.small import small_model  # noqa: F401


def test_a_step_has_as_many_operations_as_pytorch_counts():
    layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
    pixels = torch.nn.Conv1d(5, 5, 3)

    def step():
        pixels(layer(torch.rand(2, 5, 16))).sum().backward()
        with torch.inference_mode():
            layer(torch.rand(2, 5, 16)) @ torch.rand(16, 3)

    with FlopCounterMode(display=False) as theirs:
        step()
    with Counter() as ours:
        step()
    assert ours.total == theirs.get_total_flops() > 0


def test_three_micro_batches_have_three_times_the_operations_of_one(small_model):  # noqa: F811
    plans = [make({"model": small_model, "seq": 64, "grad_accum": n}) for n in (1, 3)]
    answers = Answers(use_cache=False, counted=True)
    one, three = answers.predict(plans)
    assert three.flops == 3 * one.flops
