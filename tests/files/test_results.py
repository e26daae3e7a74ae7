"""Result files: locked, whole, and never the reason that a run is lost."""

import json
import resource
import subprocess
import sys

import pytest

from memcalc.accuracy.compare import compare
from memcalc.catalog import models
from memcalc.errors import UsageError
from memcalc.files import artifact, lock, results
from memcalc.files.artifact import document
from memcalc.files.results import Run, append, keeping, load, save
from memcalc.records.measurement import Measurement
from memcalc.records.plan import Plan


def run(name="a", **more):
    plan = Plan(model=name)
    measured = Measurement(
        plan=plan, device="cpu", head="", seq=None, parameters=None, weights=None, gradients=None,
        state=None, phases=(), seconds_per_step=None, samples_per_second=None, **more,
    )  # fmt: skip
    return Run(plan=plan, measurement=measured)


def test_what_is_saved_is_read_back_and_a_later_version_s_keys_are_passed_over(tmp_path):
    path = tmp_path / "a.json"
    save(path, [run(), Run(plan=Plan(model="b"), error="it failed")])
    assert [r.plan.model for r in load(path)] == ["a", "b"]
    data = json.loads(path.read_text())
    data["runs"][0]["measurement"]["later"] = 1
    path.write_text(json.dumps(data))
    assert load(path)[0] == run()


def test_bytes_that_are_no_utf8_are_written_so_that_they_can_be_read(tmp_path):
    path = tmp_path / "a.json"
    save(path, [run("caf\udce9 \N{GRINNING FACE} \\udce9")])
    (kept,) = load(path)
    assert kept.plan.model == "caf\\udce9 \N{GRINNING FACE} \\udce9"


def test_a_file_that_stops_to_be_writable_costs_no_run(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    said = []
    folder = tmp_path / "results"
    folder.mkdir()
    with keeping(folder / "a.json", more=False, say=said.append) as keeper:
        keeper.add(run("a"))
        folder.rename(tmp_path / "away")
        keeper.add(run("b"))
        keeper.add(run("c"))
        (tmp_path / "away").rename(folder)
        keeper.add(run("d"))
        assert [r.plan.model for r in load(folder / "a.json")] == ["a", "b", "c", "d"]
        folder.rename(tmp_path / "gone")
        keeper.add(run("e"))
    assert [text.split(":")[0] for text in said] == ["warning", "warning", "error"]
    [kept] = tmp_path.glob("memcalc-*/a.json")
    assert [r.plan.model for r in load(kept)] == ["a", "b", "c", "d", "e"]
    assert str(kept.parent) in said[-1]


def test_a_full_disk_is_found_before_the_first_run(tmp_path):
    code = (
        "import resource, pathlib; from memcalc.files.results import keeping\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8, 8))\n"
        "with keeping(pathlib.Path('a.json'), more=False, say=print): print('ran')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          cwd=tmp_path)  # fmt: skip
    assert "Cannot write a.json: File too large" in done.stderr
    assert "ran" not in done.stdout
    assert resource.getrlimit(resource.RLIMIT_FSIZE) != (8, 8)
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_a_lock_dies_with_its_process_and_leaves_no_file(tmp_path):
    path = tmp_path / "a.json"
    code = (
        "import os, pathlib; from memcalc.files import lock\n"
        "with lock.hold(pathlib.Path('a.json')): os._exit(0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    assert not any(tmp_path.glob("*.lock"))
    with lock.hold(path):
        with pytest.raises(UsageError, match="Another memcalc"), lock.hold(path):
            pass
        append_refused = pytest.raises(UsageError, match="Another memcalc")
        with append_refused:
            append(path, run(), patience=0)
    assert [*tmp_path.rglob("*")] == [tmp_path / "cache"]


def _fields(record):
    return {name: getattr(record, name) for name in record.__struct_fields__}


def test_comparing_puts_the_worst_first_and_leaves_out_what_one_side_lacks():
    import memcalc

    predicted = memcalc.estimate("distilbert-base-cased", method="analytic")
    measured = Measurement(
        **{**_fields(run("a").measurement), "weights": 263_132_168, "gradients": 263_132_000}
    )
    found = compare(predicted, measured)
    assert [(item.name, item.error) for item in found] == [("gradients", 168), ("weights", 0)]
    assert found[0].relative == 168 / 263_132_000


@pytest.mark.parametrize("kind", ["fit", "suggestions", "cards", "difference", "snapshot"])
def test_another_answer_of_memcalc_is_called_what_it_is(tmp_path, kind):
    path = tmp_path / "answer.json"
    path.write_text(document(kind, {}))
    with pytest.raises(UsageError, match="and no prediction: give what memcalc estimate wrote"):
        results.predictions(artifact.read(path), path)
    with pytest.raises(UsageError, match="is an answer of memcalc, and no model"):
        models.find(str(path))
