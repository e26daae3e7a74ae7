"""What a shell offers is what memcalc understands."""

import pytest

from memcalc.catalog import gpus
from memcalc.cli import complete


@pytest.mark.parametrize("begun", ["", "rtx", "40", "2", "h1", "A1"])
def test_every_gpu_that_is_offered_is_one(begun):
    offered = complete.gpus(None, None, begun)
    assert offered
    for name in offered:
        assert name.startswith(begun.lower())
        assert gpus.find(name)


def test_of_a_list_of_optimizers_the_last_is_completed():
    assert "sgd,adamw" in complete.optimizers(None, None, "sgd,adam")
    assert complete.models(None, None, "distil")
