"""The committed baseline: the same figures give the same bytes, and what changed is named."""

import json
from pathlib import Path

import pytest
from msgspec.structs import replace

from memcalc.budgets import baseline
from memcalc.budgets.check import check, exit_code
from memcalc.budgets.read import read
from memcalc.budgets.records import Status
from memcalc.errors import EstimateError, UsageError

FILE = Path("memcalc-baseline.json")


@pytest.fixture
def checked(write, small, question):
    """Check a budget file that holds this text."""

    def run(text=None, **more):
        path = write(text or small('max_growth = "0 B"'))
        return check([read(path)], replace(question, **more))[0]

    return run


def test_a_baseline_is_written_the_same_twice_and_read_back(checked):
    checked(update=True)
    first = FILE.read_bytes()
    checked(update=True)
    assert FILE.read_bytes() == first
    data = json.loads(first)
    assert list(data) == sorted(data)
    run = data["runs"]["small"]
    assert run["plan"] == {"batch": 2, "model": "distilbert-base-cased", "seq": 32}
    assert run["figures"]["weights"] == 65_783_042 * 4
    assert all(type(size) is int for size in run["figures"].values())
    assert baseline.read(FILE).runs["small"].figures == run["figures"]


def test_without_a_baseline_growth_is_an_error(checked):
    report = checked()
    assert [v.status for v in report.verdicts] == [Status.UNKNOWN]
    assert exit_code(report) == 3
    assert "there is no memcalc-baseline.json" in report.warnings[0]


def test_growth_names_the_setting_and_the_component_that_changed(checked, small):
    checked(update=True)
    (verdict,) = checked(small('max_growth = "0 B"').replace("batch = 2", "batch = 64")).verdicts
    assert verdict.status is Status.OVER
    assert verdict.reason.startswith("batch 2 -> 64; activations +")
    assert verdict.before < verdict.value


def test_other_versions_are_a_warning_that_names_both(checked):
    checked(update=True)
    data = json.loads(FILE.read_text())
    now = data["versions"]["torch"]
    data["versions"]["torch"] = "1.0.0"
    FILE.write_text(json.dumps(data))
    report = checked()
    assert [v.status for v in report.verdicts] == [Status.HOLDS]
    assert f"torch 1.0.0 then, {now} now" in report.warnings[0]


def test_a_run_that_is_new_is_named(checked, small):
    checked(update=True)
    assert "does not hold other" in checked(small('max_growth = "1%"', name="other")).warnings[0]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 1, "kind": "prediction"}',
        '{"schema": 1, "kind": "baseline"}',
        '{"schema": 1, "kind": "baseline", "versions": {}, "runs": {"small": {}}}',
        '{"schema": 1, "kind": "baseline", "versions": {}, "runs": {"small": {"plan": {}, '
        '"source": "analytic", "parameters": 1, "figures": {"weights": "big"}}}}',
        '{"schema": 9, "kind": "baseline", "versions": {}, "runs": {}}',
    ],
)
def test_a_damaged_baseline_is_refused(checked, text):
    checked(update=True)
    FILE.write_text(text)
    with pytest.raises(UsageError, match=r"memcalc-baseline\.json"):
        checked()


def test_a_baseline_named_on_the_command_line_must_be_there(checked):
    with pytest.raises(UsageError, match="update-baseline"):
        checked(baseline=Path("other.json"))
    checked(baseline=Path("other.json"), update=True)
    assert [v.status for v in checked(baseline=Path("other.json")).verdicts] == [Status.HOLDS]


def test_a_baseline_no_file_can_be_named_is_refused(checked, small):
    name = "b" * 300
    with pytest.raises(UsageError, match="File name too long"):
        checked(f'baseline = "{name}"\n' + small('max_growth = "0 B"'))


def test_a_baseline_is_left_as_it_was_when_a_run_fails(checked, tmp_path):
    checked(update=True)
    before = FILE.read_bytes()
    saved = tmp_path / "none.json"
    saved.write_text('{"schema": 1, "kind": "measurements", "runs": []}')
    with pytest.raises(EstimateError, match="baseline is unchanged"):
        checked(update=True, saved=(saved,))
    assert FILE.read_bytes() == before
