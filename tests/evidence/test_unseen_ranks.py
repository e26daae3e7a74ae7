"""Ranks of kinds that no other recording holds, recorded before their estimates were looked at."""

import pytest

import memcalc
from memcalc.errors import UsageError
from memcalc.files.artifact import decode
from memcalc.records.plan import Plan
from tests.evidence.judged import STANDIN, all_of, runs, sample

(RECORDING,) = STANDIN.glob("unseen-ranks-torch*.json")
(MORE,) = STANDIN.glob("unseen-ranks-more-*.json")
(THIRD,) = STANDIN.glob("unseen-ranks-third-*.json")
ALL = sorted(STANDIN.glob("unseen-ranks-*.json"))


def plans_of(recording):
    return [decode(Plan, run["plan"]) for run in runs(recording)]


@pytest.mark.nightly
@pytest.mark.parametrize("recording", ALL, ids=lambda path: path.stem)
def test_all_of_them_are_equal_in_every_phase_on_every_rung(recording):
    all_of(recording)


def test_layers_of_odd_sizes_are_met(forked):
    plans = plans_of(THIRD)
    odd = [i for i, p in enumerate(plans) if "odd-llama" in p.model and p.parallel == "fsdp2"]
    sample(forked, THIRD, odd[:1])


@pytest.mark.parametrize(
    ("optim", "parallel", "words"),
    [
        ("adamw_8bit", "fsdp2", "its kernels take no DTensors"),
        ("lion_32bit", "hsdp=2x1", "its kernels take no DTensors"),
        ("galore_adamw", "fsdp2", "how fsdp2 divides its state is unknown"),
    ],
)
def test_an_optimizer_whose_code_is_not_run_is_refused_where_it_gets_no_plain_tensors(
    optim, parallel, words
):
    with pytest.raises(UsageError, match=words):
        memcalc.estimate("gpt2", devices=2, parallel=parallel, optim=optim)
