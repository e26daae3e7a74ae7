"""Budgets over batches of varying length are judged by all of them, not by one."""

import pytest

from memcalc.budgets import collect
from memcalc.budgets.judge import judge
from memcalc.budgets.read import read
from memcalc.budgets.records import Status
from memcalc.errors import UsageError

EFFORT = collect.Effort(use_cache=False, workers=1)


def runs_of(tmp_path, lines, limits='peak = { reserved = "100 GiB" }'):
    path = tmp_path / "memcalc.toml"
    path.write_text(f"[runs.a]\n{lines}\n[runs.a.limits]\n{limits}\n")
    return read(path).runs


@pytest.mark.nightly
def test_peaks_and_fit_are_those_of_all_batches(tmp_path, small_model):
    (tmp_path / "lengths.txt").write_text("9\n40\n64\n")
    lines = f'model = "{small_model}"\nbatch = 2\nseq = 64\ngpu = "t4"\n'
    limits = 'peak = { reserved = "1 MiB" }\nfits = "t4"'
    plain = runs_of(tmp_path, lines, limits)
    varying = runs_of(tmp_path, f'{lines}lengths = "lengths.txt"\n', limits)
    (alone,), (over,) = (collect.estimate(runs, EFFORT) for runs in (plain, varying))
    drawn = over.prediction.varied.ways[0]
    assert alone.prediction.varied is None
    assert over.prediction.peak.reserved == drawn.reserved >= alone.prediction.peak.reserved
    statuses = {v.budget.metric: v.status for v in judge(varying[0], over, None)}
    assert statuses == {"peak.reserved": Status.OVER, "fits": Status.HOLDS}
    (saved,) = collect.keep(varying, [over])
    assert saved.prediction.varied == over.prediction.varied
    assert "lengths" in collect._evidence(saved.prediction, plain[0]).error


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ('model = "gpt2"\nlengths = 3\n', "normal:MEAN,STD"),
        ('model = "gpt2"\nlengths = ""\n', "normal:MEAN,STD"),
        ('model = "gpt2"\nmethod = "analytic"\nlengths = "uniform:1,2"\n', "one length"),
        ('command = "python x.py"\nlengths = "uniform:1,2"\n', "its own batches"),
    ],
)
def test_lengths_that_cannot_be_replayed_are_refused_with_their_line(tmp_path, lines, said):
    with pytest.raises(UsageError, match=rf"memcalc.toml:\d+: .*{said}"):
        runs_of(tmp_path, lines)


def test_lengths_are_not_measured(tmp_path):
    runs = runs_of(tmp_path, 'model = "gpt2"\nlengths = "uniform:1,2"\n')
    with pytest.raises(UsageError, match="replayed, not measured"):
        collect.measure(runs, EFFORT)
