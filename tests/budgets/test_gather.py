"""Evidence: estimated, or looked up in what was saved; and who shares a worker."""

from json import dumps

import pytest
from msgspec.structs import replace

from memcalc.budgets import collect
from memcalc.budgets.check import check, exit_code
from memcalc.budgets.judge import judge
from memcalc.budgets.read import read
from memcalc.budgets.records import Evidence, Status
from memcalc.catalog import models
from memcalc.catalog.plan import make
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation import answers as side_by_side
from memcalc.files import artifact
from memcalc.files.results import Run, save
from memcalc.report import predictions


@pytest.fixture
def runs(write, small):
    def of(more=""):
        return read(write(small(more=more))).runs

    return of


def test_a_run_is_found_in_what_estimate_wrote_and_in_what_check_saved(runs, question, tmp_path):
    found = collect.estimate(runs(), question)
    wrote, saved = tmp_path / "answer.json", tmp_path / "saved.json"
    artifact.write(wrote, predictions.as_json([found[0].prediction]))
    save(saved, collect.as_runs(runs(), found))
    assert collect.look_up(runs(), [wrote]) == collect.look_up(runs(), [saved]) == found


def test_a_run_that_is_not_in_the_file_is_no_run_that_holds(runs, question, tmp_path):
    save(tmp_path / "saved.json", collect.as_runs(runs(), collect.estimate(runs(), question)))
    (evidence,) = collect.look_up(runs("grad_accum = 2\n"), [tmp_path / "saved.json"])
    assert evidence.prediction is None
    assert "closest differs in grad_accum" in evidence.error


def test_closed_forms_do_not_stand_in_for_a_trace_that_failed(runs, question, monkeypatch):
    def fails(self, plans):
        return iter([EstimateError("the model's code stopped")] * len(plans))

    monkeypatch.setattr(side_by_side.Answers, "predict", fails)
    (run,) = runs()
    (evidence,) = collect.estimate([replace(run, method="trace")], question)
    assert evidence == Evidence(error="the model's code stopped")


@pytest.mark.parametrize("text", ["{", "{}", '{"schema": 1}', '{"schema": 1, "predictions": [1]}'])
def test_a_file_without_results_is_refused(runs, tmp_path, text):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(UsageError):
        collect.look_up(runs(), [path])


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ('optim = "adamx"\n', 6),
        ('task = "poetry"\n', 6),
        ('gpu = "t44"\n', 6),
        ('alloc_conf = "max_split:3"\n', 6),
        ('optim_args = { lr = "fast" }\n', 1),
    ],
)
def test_an_unknown_name_has_its_line(runs, more, line):
    with pytest.raises(UsageError) as caught:
        collect.validate(runs(more))
    assert str(caught.value).startswith(f"memcalc.toml:{line}: ")


def test_a_model_that_is_not_found_fails_its_own_budgets_only(write, small, question):
    text = small() + small(name="gone").replace("distilbert-base-cased", "./gone")
    text += small(name="long").replace("seq = 32", "seq = 4096")
    report, _ = check([read(write(text))], question)
    found = {verdict.budget.run: verdict for verdict in report.verdicts}
    assert {name: verdict.status for name, verdict in found.items()} == {
        "small": Status.HOLDS,
        "gone": Status.UNKNOWN,
        "long": Status.UNKNOWN,
    }
    assert found["gone"].reason.startswith("memcalc.toml:10: Cannot read")
    assert found["long"].reason.startswith("memcalc.toml:21: ")
    assert "at most 512 tokens" in found["long"].reason
    assert exit_code(report) == 3


@pytest.fixture
def local(runs, tmp_path):
    """A run of a model whose config.json is in the folder; and a way to let the config grow."""
    source = models.find("distilbert-base-cased")

    def write_config(**more: int) -> None:
        (tmp_path / "config.json").write_text(dumps({**source.config, **more}))

    write_config()
    (run,) = runs()
    return replace(run, plan=replace(run.plan, model="./config.json")), write_config


def test_results_of_a_config_that_has_grown_are_no_answer(local, question, tmp_path):
    run, write_config = local
    known = collect.estimate([run], question)
    save(tmp_path / "saved.json", collect.as_runs([run], known))
    assert collect.look_up([run], [tmp_path / "saved.json"]) == known
    write_config(n_layers=12)
    (evidence,) = collect.look_up([run], [tmp_path / "saved.json"])
    assert "another config of ./config.json" in evidence.error
    write_config()
    assert collect.look_up([run], [tmp_path / "saved.json"]) == known
    (tmp_path / "config.json").unlink()
    (evidence,) = collect.look_up([run], [tmp_path / "saved.json"])
    assert "Cannot read" in evidence.error


def test_results_that_do_not_name_their_config_are_no_answer(runs, question, tmp_path):
    (run,) = runs()
    (known,) = collect.estimate([run], question)
    older = replace(known.prediction, config=None)
    save(tmp_path / "saved.json", [Run(plan=run.plan, prediction=older)])
    (evidence,) = collect.look_up([run], [tmp_path / "saved.json"])
    assert "does not name its config" in evidence.error


def test_what_cannot_be_compared_is_said(runs, question, tmp_path):
    (run,) = runs()
    (known,) = collect.estimate([run], question)
    for name, word in (("zoo:small", "is Python code"), ("nobody/has-this", "is not checked")):
        plan = replace(run.plan, model=name)
        save(tmp_path / "saved.json", [Run(plan=plan, prediction=known.prediction)])
        (evidence,) = collect.look_up([replace(run, plan=plan)], [tmp_path / "saved.json"])
        assert evidence.prediction == known.prediction
        assert word in evidence.doubt


def test_workers_are_bounded_by_free_memory_and_cores(monkeypatch):
    monkeypatch.setattr(side_by_side.os, "sched_getaffinity", lambda pid: set(range(64)))
    for free, expected in ((0, 1), (3 << 30, 3), (1 << 40, 64)):
        monkeypatch.setattr(side_by_side, "free_memory", lambda free=free: free)
        assert side_by_side.room() == expected


def test_a_container_with_less_room_than_the_machine_counts(monkeypatch, tmp_path):
    (tmp_path / "memory.max").write_text(str(5 << 30))
    (tmp_path / "memory.current").write_text(str(3 << 30))
    monkeypatch.setattr(side_by_side, "_CGROUP", tmp_path)
    assert side_by_side.free_memory() <= 2 << 30
    (tmp_path / "memory.max").write_text("max\n")
    assert side_by_side.free_memory() > 0


def test_each_run_is_told_as_soon_as_it_is_known_and_commands_come_last(
    runs, question, monkeypatch
):
    estimated = runs()[0]
    command = replace(estimated, name="script", plan=make({"command": "python train.py"}))
    told = []
    monkeypatch.setattr(
        collect, "simulate_command", lambda *_, **__: Evidence(error=f"after {len(told)}")
    )
    asked = replace(question, seen=lambda name, found: told.append(name))
    found = collect.estimate([command, estimated], asked)
    assert told == [estimated.name, "script"]
    assert (found[0].error, found[1].error) == ("after 1", None)


def runs_of(tmp_path, lines, limits='peak = { reserved = "100 GiB" }'):
    path = tmp_path / "memcalc.toml"
    path.write_text(f"[runs.a]\n{lines}\n[runs.a.limits]\n{limits}\n")
    return read(path).runs


@pytest.mark.nightly
def test_peaks_and_fit_are_those_of_all_batches(tmp_path, small_model, question):
    (tmp_path / "lengths.txt").write_text("9\n40\n64\n")
    lines = f'model = "{small_model}"\nbatch = 2\nseq = 64\ngpu = "t4"\n'
    limits = 'peak = { reserved = "1 MiB" }\nfits = "t4"'
    plain = runs_of(tmp_path, lines, limits)
    varying = runs_of(tmp_path, f'{lines}lengths = "lengths.txt"\n', limits)
    (alone,), (over,) = (collect.estimate(runs, question) for runs in (plain, varying))
    drawn = over.prediction.varied.ways[0]
    assert alone.prediction.varied is None
    assert over.prediction.peak.reserved == drawn.reserved >= alone.prediction.peak.reserved
    statuses = {v.budget.metric: v.status for v in judge(varying[0], over, None)}
    assert statuses == {"peak.reserved": Status.OVER, "fits": Status.HOLDS}
    (saved,) = collect.as_runs(varying, [over])
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


def test_lengths_are_not_measured(tmp_path, question):
    runs = runs_of(tmp_path, 'model = "gpt2"\nlengths = "uniform:1,2"\n')
    with pytest.raises(UsageError, match="replayed, not measured"):
        collect.measure(runs, question)
