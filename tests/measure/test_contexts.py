"""Runs that memcalc measured become readings of the context."""

import json

import pytest

from memcalc.catalog import gpus
from memcalc.files import artifact, results, shipped
from memcalc.files.results import Run, save
from memcalc.records.measurement import GpuReading, Measurement, Moment, OutOfMemory, StateReading
from memcalc.records.plan import Plan
from memcalc.records.trace import Phase
from tests.context_script import Reading, Stage, script

MIB = 1 << 20
readings = script.readings


def gpu(**more):
    known = {
        "source": "process",
        "moments": (
            Moment(name="before", device=4 * MIB, process=0),
            Moment(name="context", device=438 * MIB, process=434 * MIB, reserved=0),
            Moment(name="trained", device=2550 * MIB, process=2546 * MIB, reserved=2010 * MIB),
        ),
        **more,
    }
    return GpuReading(
        uuid="GPU-0", name="NVIDIA H200", driver="580.159.03", total=143771 * MIB,
        memory_info="v2", driver_reserved=0, peak_device=2600 * MIB, peak_process=2546 * MIB,
        samples=99, interval=0.02, **known,
    )  # fmt: skip


def measured(**more):
    known = {
        "gpu": gpu(),
        "state": StateReading(device=1, host=0, managed=0, tutorial_elements=0, tutorial_bytes=0),
        **more,
    }
    return Measurement(
        plan=Plan(model="gpt2"), device="NVIDIA H200", head="", seq=512, parameters=1, weights=1,
        gradients=1, phases=(), seconds_per_step=None, samples_per_second=None,
        versions={"torch": "2.11.0+cu130", "cuda": "13.0"}, **known,
    )  # fmt: skip


def test_a_run_shows_the_bare_context_and_what_training_adds():
    bare, trained = readings([measured()], "evidence/h200.json")
    assert (bare.stage, bare.low, bare.high) == (Stage.CONTEXT, 434 * MIB, 434 * MIB)
    assert (trained.stage, trained.low) == (Stage.TRAINING, 536 * MIB)
    assert {(r.gpu, r.torch, r.cuda, r.driver, r.lazy) for r in (bare, trained)} == {
        ("H200", "2.11.0+cu130", "13.0", "580.159.03", True)
    }


def test_runs_that_are_no_reading_of_the_context_are_left_out():
    gone = OutOfMemory(step=0, phase=Phase.BACKWARD, asked=1, free=1, message="")
    managed = StateReading(device=0, host=0, managed=9, tutorial_elements=0, tutorial_bytes=0)
    for run in (
        measured(gpu=None),
        measured(gpu=gpu(source="difference")),
        measured(gpu=gpu(source="unknown")),
        measured(out_of_memory=gone),
        measured(state=managed),
    ):
        assert list(readings([run], "x")) == []


def test_kernels_loaded_at_once_are_told_apart():
    eager = measured(settings={"CUDA_MODULE_LOADING": "EAGER"})
    assert [r.lazy for r in readings([eager], "x")] == [False, False]


def test_files_of_results_outrank_what_was_published(tmp_path, monkeypatch):
    def run(size):
        points = gpu().moments[:2]
        end = Moment(name="trained", device=0, process=(2010 + size) * MIB, reserved=2010 * MIB)
        return Run(plan=Plan(model="gpt2"), measurement=measured(gpu=gpu(moments=(*points, end))))

    path = tmp_path / "h200.json"
    save(path, [run(size) for size in (520, 536, 544)])
    assert len(results.load(path)) == 3
    text = script.measured_text([str(path)])
    made = tuple(artifact.decode(Reading, entry) for entry in json.loads(text))
    assert len(made) == 6
    published = script.table()
    monkeypatch.setattr(script, "table", lambda: (*published, *made))
    held = script.ranges_of(gpus.find("h200"))
    assert held.total.low <= 520 * MIB < held.total.likely == 536 * MIB
    assert held.total.high >= 544 * MIB
    assert held.total.source.startswith("3 readings by memcalc on H200, widened by ")
    assert held.context.low == held.context.high == 434 * MIB


@pytest.mark.parametrize("there", [False, True])
def test_the_file_of_measured_readings_is_read_where_there_is_one(there, tmp_path, monkeypatch):
    published = shipped.configs() / "contexts.toml"
    (tmp_path / "contexts.toml").write_text(published.read_text())
    if there:
        (tmp_path / script.MEASURED).write_text(
            json.dumps(list(map(artifact.encode, readings([measured()], "h200.json"))))
        )
    monkeypatch.setattr(shipped, "configs", lambda: tmp_path)
    assert [r.gpu for r in script.table.__wrapped__() if r.measured] == ["H200", "H200"] * there
