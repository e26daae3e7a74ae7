"""People's own training loops, recorded from inside, and any command from outside."""

import json
import subprocess
import sys

import pytest
import torch

import memcalc
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.files.results import load
from memcalc.measure.runs.run import Options, measure
from tests.measure import models
from tests.measure.driver import GIB, card, process


@pytest.fixture(autouse=True)
def _zoo(tmp_path, monkeypatch):
    models.write(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    sys.modules.pop("zoo", None)


def small():
    import zoo

    model = zoo.Small()
    trained = [p for p in model.parameters() if p.requires_grad]
    return model, torch.optim.AdamW(trained)


def train(model, optimizer, steps=3):
    for _ in range(steps):
        batch = {"ids": torch.zeros(4, 8, dtype=torch.long)}
        loss = model(**batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()


def peaks(measurement, step):
    return {r.phase.value: r.requested for r in measurement.phases if r.step == step}


def test_a_loop_recorded_costs_what_the_same_loop_measured_costs(tmp_path):
    model, optimizer = small()
    with memcalc.record(model, optimizer, output="own.json", plan={"model": "zoo:Small"}) as record:
        train(model, optimizer)
    found = record.measurement
    plan = make({"model": "zoo:Small", "inputs": models.INPUT, "batch": 4, "target": "cpu"})
    real = measure(plan, Options(device="cpu", steps=3))
    assert (found.weights, found.gradients, found.state) == (
        real.weights,
        real.gradients,
        real.state,
    )
    # The recording began when the model was there already.
    base = real.weights
    for phase in ("backward", "step"):
        assert abs(peaks(found, 1)[phase] + base - peaks(real, 1)[phase]) <= 64
    [run] = load(tmp_path / "own.json")
    assert run.measurement == found
    assert (found.plan.model, found.plan.batch) == ("zoo:Small", 4)


def test_without_arguments_the_outermost_module_and_any_optimizer_are_followed():
    model, optimizer = small()
    with memcalc.record() as record:
        train(model, optimizer)
    assert {r.step for r in record.measurement.phases} == {0, 1, 2}
    assert record.measurement.head == "Small"
    assert record.measurement.state.device > 0


def test_micro_batches_evaluation_and_checkpointing_do_not_confuse_the_phases():
    model, optimizer = small()
    ids = torch.zeros(4, 8, dtype=torch.long)
    with memcalc.record(model, optimizer) as record:
        for _ in range(2):
            for _ in range(2):
                loss = torch.utils.checkpoint.checkpoint(model, ids, use_reentrant=False)
                loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            with torch.no_grad():
                model(ids)
    order = [r.phase.value for r in record.measurement.phases if r.step == 1]
    assert order == ["forward", "backward"] * 2 + ["step", "zero_grad"]


def test_a_loop_that_runs_out_of_memory_is_recorded_and_still_fails(tmp_path):
    import zoo

    with pytest.raises(RuntimeError), memcalc.record(output="own.json") as record:
        zoo.TooLarge()(torch.zeros(4, 8, dtype=torch.long))
    failed = record.measurement.out_of_memory
    assert (failed.phase.value, failed.asked) == ("forward", 4 << 50)
    assert load(tmp_path / "own.json")[0].measurement.out_of_memory == failed


def test_nothing_stays_changed_behind_a_recording():
    before = torch.autograd.backward
    model, optimizer = small()
    with pytest.raises(ZeroDivisionError), memcalc.record(model, optimizer):
        raise ZeroDivisionError
    assert torch.autograd.backward is before
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_settings_that_make_no_sense_are_refused_before_training():
    with pytest.raises(UsageError, match="did you mean batch"):
        memcalc.record(plan={"batsh": 3})
    with pytest.raises(UsageError, match="did you mean batch"):
        memcalc.MemoryCallback(plan={"batsh": 3})


def test_a_recording_that_cannot_be_kept_is_kept_elsewhere_and_the_training_goes_on(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        pytest.warns(UserWarning, match="Cannot write nowhere") as said,
        memcalc.record(*small(), output="nowhere/own.json") as record,
    ):
        train(*small())
    assert record.measurement is not None
    [kept] = tmp_path.glob("memcalc-*/own.json")
    assert str(kept) in str(said[-1].message)
    assert load(kept)[0].measurement == record.measurement


@pytest.mark.parametrize(
    "broken",
    [
        "memcalc.measure.recording.recording.Recording.__enter__",
        "memcalc.engine.cpu_counters.CpuCounters.enter",
        "memcalc.engine.cpu_counters.CpuCounters.rename",
        "memcalc.engine.cpu_counters.CpuCounters._iterate_changes",
        "memcalc.measure.recording.recording.Seen.enter_model",
        "memcalc.measure.recording.recording.storage_bytes",
        "memcalc.measure.recording.recording.read_state",
        "memcalc.measure.recording.recorder.process.versions",
    ],
)
def test_whatever_fails_in_a_recording_the_training_goes_on(broken, monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("a fault of memcalc's own")

    monkeypatch.setattr(broken, fails)
    model, optimizer = small()
    before = torch.autograd.backward
    with (
        pytest.warns(UserWarning, match="training goes on: RuntimeError: a fault"),
        memcalc.record(model, optimizer) as record,
    ):
        train(model, optimizer)
    assert record.measurement is None
    assert optimizer.state[next(iter(optimizer.state))]["step"] == 3
    assert torch.autograd.backward is before
    monkeypatch.undo()
    with memcalc.record(model, optimizer) as again:
        train(model, optimizer)
    assert again.measurement is not None


def test_a_recording_inside_another_and_an_empty_batch_are_no_end_of_training():
    model, optimizer = small()
    with (
        memcalc.record(model, optimizer) as outer,
        pytest.warns(UserWarning, match="training goes on"),
        memcalc.record(model, optimizer) as inner,
    ):
        train(model, optimizer)
    assert (outer.measurement is not None, inner.measurement) == (True, None)
    with memcalc.record(model) as empty:
        model(ids=torch.zeros(0, 8, dtype=torch.long))
    assert empty.measurement.plan.batch == 8


def test_a_trainer_whose_arguments_make_no_sense_trains_on(tmp_path):
    callback = memcalc.MemoryCallback(tmp_path / "own.json")
    with pytest.warns(UserWarning, match="arguments are not understood"):
        callback.on_train_begin(object(), None, None, model=small()[0])
    callback.on_train_end(object(), None, None)
    assert callback.measurement.head == "Small"
    assert len(load(tmp_path / "own.json")) == 1


def train_with_the_callback():
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64,
        vocab_size=50, max_position_embeddings=32,
    )  # fmt: skip
    data = [{"input_ids": torch.ones(16, dtype=torch.long), "labels": torch.tensor(0)}] * 8
    arguments = TrainingArguments(
        output_dir="out", per_device_train_batch_size=2, max_steps=3, disable_tqdm=True,
        gradient_accumulation_steps=2, report_to=[], save_strategy="no", use_cpu=True,
        remove_unused_columns=False,
    )  # fmt: skip
    callback = memcalc.MemoryCallback("own.json")
    model = BertForSequenceClassification(config)
    Trainer(model, arguments, train_dataset=data, callbacks=[callback]).train()


def check_what_the_callback_wrote(run):
    plan = run.plan
    assert (plan.optim, plan.batch, plan.grad_accum, plan.seq, plan.loop, plan.max_grad_norm) == (
        "adamw_torch_fused", 2, 2, 16, "trainer", 1.0,
    )  # fmt: skip
    assert {r.step for r in run.measurement.phases} == {0, 1, 2}
    assert run.measurement.state.device >= 2 * run.measurement.weights


def test_the_trainers_callback_writes_the_same_file(forked, tmp_path):
    forked(train_with_the_callback)
    [run] = load(tmp_path / "own.json")
    check_what_the_callback_wrote(run)


TRAINER = """
import torch, memcalc
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments
config = BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                    intermediate_size=64, vocab_size=50, max_position_embeddings=32)
data = [{"input_ids": torch.ones(16, dtype=torch.long), "labels": torch.tensor(0)}] * 8
class Fails(BertForSequenceClassification):
    def forward(self, **inputs):
        return torch.empty(1 << 50)
for head in (BertForSequenceClassification, Fails):
    arguments = TrainingArguments(output_dir="out", per_device_train_batch_size=2, max_steps=3,
        gradient_accumulation_steps=2, report_to=[], save_strategy="no", use_cpu=True,
        disable_tqdm=True, remove_unused_columns=False)
    Trainer(head(config), arguments, train_dataset=data,
            callbacks=[memcalc.MemoryCallback("own.json")]).train()
"""


@pytest.mark.nightly
def test_the_trainers_callback_writes_its_file_also_when_memory_runs_out(tmp_path):
    done = subprocess.run([sys.executable, "-c", TRAINER], capture_output=True, text=True)
    assert "can't allocate memory" in done.stderr
    fine, failed = load(tmp_path / "own.json")
    check_what_the_callback_wrote(fine)
    assert failed.measurement.out_of_memory.asked == 4 << 50


HOLD = "x = bytearray(200 << 20); import time; time.sleep(1); raise SystemExit(7)"


def test_any_command_is_watched_and_its_exit_code_passed_on(cold, request, tmp_path, monkeypatch):
    done = cold("run", "-o", "own.json", "--", sys.executable, "-c", f"print('hers'); {HOLD}")
    assert done.returncode == 7
    assert done.stdout == "hers\n"
    [run] = load(tmp_path / "own.json")
    assert run.measurement.peak_rss > 200 << 20
    assert "NVML" in run.measurement.unknown["process_used"]
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    here = request.getfixturevalue("memcalc")  # its name is that of the package
    assert here("run", "--", "sh", "-c", "kill -9 $$").returncode == 137
    (tmp_path / "mine.py").write_text("mine")
    refused = here("run", "-o", "mine.py", "--", "sh", "-c", "exit 7")
    assert (refused.returncode, (tmp_path / "mine.py").read_text()) == (2, "mine")
    for place in ("nowhere/own.json", "/dev/full", "n" * 300):
        done = here("run", "-o", place, "--", "sh", "-c", "exit 7")
        assert done.returncode == 7, place
        assert "warning: Cannot write" in done.stderr
    assert len(list(tmp_path.glob("memcalc-*/*"))) == 3
    missing = here("run", "no-such-command")
    assert missing.returncode == 2
    assert "no-such-command" in missing.stderr


def test_a_command_smaller_than_memcalc_is_not_said_to_hold_what_memcalc_holds(cold, tmp_path):
    cold("run", "-o", "own.json", "--", "sleep", "0.2")
    [run] = load(tmp_path / "own.json")
    assert 0 < run.measurement.peak_rss < 8 << 20


def test_the_gpu_memory_of_a_command_is_that_of_its_processes(driver, tmp_path):
    other = process(1, GIB, name="init")
    driver.write(card(used=GIB), other)
    # The command tells the driver of its own child, as if that had allocated.
    inner = (
        "import os, pathlib, time;"
        f"pathlib.Path('script').write_text({card(used=4 * GIB)!r} + chr(10) + {other!r} + chr(10)"
        f" + {process(4321, 3 * GIB)!r}.replace('4321', str(os.getpid())) + chr(10));"
        "time.sleep(1)"
    )
    done = subprocess.run(
        [sys.executable, "-m", "memcalc", "run", "-o", "own.json", "--", "sh", "-c",
         f'{sys.executable} -c "$CODE"; exit 3'],
        capture_output=True, text=True, env=driver.env(CODE=inner), cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 3
    found = json.loads((tmp_path / "own.json").read_text())["runs"][0]["measurement"]
    assert found["process_used"] == 3 * GIB
    assert found["gpu"]["source"] == "process"
    assert "shared with init" in done.stderr
