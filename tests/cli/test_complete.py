"""What a shell offers is what memcalc understands."""

import pytest

from memcalc.catalog import gpus
from memcalc.cli import completion


@pytest.mark.parametrize("begun", ["", "rtx", "40", "2", "h1", "A1"])
def test_every_gpu_that_is_offered_is_one(begun):
    offered = completion.gpus(begun)
    assert offered
    for name in offered:
        assert begun.lower() in name
        assert gpus.find(name)


def test_of_a_list_of_optimizers_the_last_is_completed():
    assert "sgd,adamw" in completion.optimizers("sgd,adam")


def test_a_name_is_found_by_what_is_inside_it():
    assert "meta-llama/Llama-3.1-8B" in completion.models("llama-3.1")
    assert completion.models("distil")


def test_zsh_is_told_to_match_inside_names_in_either_case(memcalc):
    shown = memcalc("completion", "zsh").stdout
    assert "compdef _memcalc_completion memcalc" in shown
    assert "'m:{a-zA-Z}={A-Za-z} l:|=* r:|=*'" in shown
