"""Every format says the same, and is what its readers take it for."""

import io
import json
import pathlib
import re

import jsonschema
import xmlschema
from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

from memcalc import untrusted_text
from memcalc.budgets.records import Amount, Budget, Report, Rule, Status, Verdict, Where
from memcalc.report import check_formats, checked
from memcalc.report.blocks import terminal
from memcalc.report.check_formats import writers
from memcalc.report.checked import blocks

DATA = pathlib.Path(__file__).parent.parent / "data"
JUNIT = xmlschema.XMLSchema(DATA / "junit-10.xsd")
SARIF = jsonschema.Draft7Validator(json.loads((DATA / "sarif-schema-2.1.0.json").read_text()))
LINE = st.text(st.characters(blacklist_categories=("Cs",)), max_size=30)


def verdict(status=Status.OVER, run="fine|tune", value=300 << 20, **more):
    budget = Budget(
        run=run,
        rule=Rule.MAX,
        metric="optimizer_state",
        amount=Amount(text="200 MiB", bytes=200 << 20),
        where=Where(file="conf/memcalc.toml", line=7),
    )
    limit = None if status is Status.UNKNOWN else 200 << 20
    given = {"value": value, "limit": limit, "before": 250 << 20, "reason": "100% <b>state</b>"}
    return Verdict(budget=budget, status=status, **{**given, **more})


def report(*verdicts, **more):
    return Report(verdicts=verdicts, **more)


MIXED = report(
    verdict(), verdict(Status.UNKNOWN, value=None, reason="it\nbroke"),
    verdict(Status.HOLDS, value=100 << 20),
    warnings=("torch 2.12.0 then, 2.13.0 now",), notes=("200 MB is understood as 190.7 MiB",),
)  # fmt: skip


@st.composite
def reports(draw):
    found = []
    for status in draw(st.lists(st.sampled_from(list(Status)), min_size=1, max_size=5)):
        known = status in (Status.OVER, Status.HOLDS)
        found.append(
            verdict(
                status,
                run=draw(LINE) or "x",
                reason=draw(LINE),
                value=draw(st.integers(0, 1 << 45)) if known else None,
            )
        )
    return report(*found, warnings=tuple(draw(st.lists(LINE, max_size=2))))


@given(reports())
def test_junit_is_valid_and_counts_what_it_holds(found):
    text = check_formats.as_junit(found)
    JUNIT.validate(io.StringIO(text))
    assert text.count("<failure ") == found.count(Status.OVER)
    assert text.count("<error ") == found.count(Status.UNKNOWN)


@given(reports(), st.sampled_from([0, 1, 3]))
def test_sarif_is_valid_and_names_the_line_of_every_failure(found, code):
    data = json.loads(check_formats.as_sarif(found, code))
    SARIF.validate(data)
    (run,) = data["runs"]
    assert len(run["results"]) == len(found.failures)
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        assert place["artifactLocation"]["uri"] == "conf/memcalc.toml"
        assert place["region"]["startLine"] == 7


def test_one_alert_is_the_same_when_its_line_moves():
    first = verdict()
    where = Where(file="conf/memcalc.toml", line=99)
    prints = [
        json.loads(check_formats.as_sarif(report(v), 1))["runs"][0]["results"][0][
            "partialFingerprints"
        ]
        for v in (first, replace(first, budget=replace(first.budget, where=where)))
    ]
    assert prints[0] == prints[1]


def unescape(text):
    """As GitHub's runner reads a command back (actions/runner, ActionCommand.cs)."""
    for code, sign in (("%0D", "\r"), ("%0A", "\n"), ("%3A", ":"), ("%2C", ","), ("%25", "%")):
        text = text.replace(code, sign)
    return text


@given(LINE, LINE)
def test_a_github_annotation_is_one_line_that_reads_back_as_it_was(run, reason):
    found = verdict(run=run, reason=reason)
    line, _ = check_formats.as_annotations(report(found)).rsplit("\n", 2)[:2]
    match = re.fullmatch(r"::error file=([^,:]*),line=(\d+),title=([^,:]*)::(.*)", line, re.DOTALL)
    assert match is not None
    assert "\n" not in line
    assert "\r" not in line
    assert (match[1], match[2]) == ("conf/memcalc.toml", "7")
    assert unescape(match[3]) == untrusted_text.line(f"memcalc: {run} optimizer_state")
    assert unescape(match[4]) == checked.sentence(found)


def test_github_shows_ten_errors_and_one_notice_for_the_rest():
    lines = check_formats.as_annotations(
        report(*[verdict(run=f"r{n}") for n in range(14)])
    ).splitlines()
    assert [line.startswith("::error") for line in lines].count(True) == 10
    (notice,) = [line for line in lines if line.startswith("::notice")]
    assert "4 more budgets" in notice
    assert all(f"r{n} " in notice for n in range(10, 14))


def test_github_paths_begin_at_the_root_of_the_checkout(monkeypatch, tmp_path):
    monkeypatch.setenv("GITHUB_WORKSPACE", str(tmp_path))
    (tmp_path / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "sub")
    assert "file=sub/conf/memcalc.toml," in check_formats.as_annotations(report(verdict()))


def test_markdown_begins_with_its_marker_and_has_failures_first():
    lines = check_formats.as_markdown(MIXED).splitlines()
    assert lines[0] == "<!-- memcalc:check -->"
    rows = [line for line in lines if line.startswith("| ") and "verdict" not in line][1:]
    assert ["over" in rows[0], "could not tell" in rows[1]] == [True] * 2
    assert {row.replace("\\|", "").count("|") for row in rows} == {8}
    assert "<b>" not in rows[0]


@given(run=LINE, reason=LINE)
@example(run="-", reason="0")
@example(run="1.", reason="+ 2)")
def test_markdown_renders_as_a_table_whose_cells_read_as_written(run, reason):
    rendered = check_formats.as_markdown(report(verdict(run=run, reason=reason)))
    tokens = MarkdownIt("gfm-like", {"linkify": False}).disable("linkify").parse(rendered)
    assert [t.type for t in tokens].count("table_open") == 1
    cells = [
        tokens[at + 1] for at, token in enumerate(tokens) if token.type in ("td_open", "th_open")
    ]
    assert len(cells) == 14
    plain = ["".join(child.content for child in cell.children) for cell in cells[7:]]
    assert plain[0] == checked.one_line(run)
    assert plain[1] == "optimizer_state"
    assert [cell.replace("\u00a0", " ") for cell in plain[2:6]] == [
        "250.0 MiB",
        "300.0 MiB",
        "+50.0 MiB (+20.0%)",
        "200.0 MiB",
    ]
    assert plain[6] == "\u274c over by 100.0 MiB"
    bullets = [tokens[at + 2] for at, t in enumerate(tokens) if t.type == "list_item_open"]
    (said,) = ["".join(child.content for child in b.children) for b in bullets] or [None]
    shown = checked.why(verdict(reason=reason))
    assert said == (checked.one_line(f"{run} optimizer_state: {shown}") if shown else None)


def test_markdown_folds_what_is_more_than_ten_rows_but_no_failure():
    held = [verdict(Status.HOLDS, value=1, run=f"h{n}") for n in range(12)]
    shown, folded = check_formats.as_markdown(report(*held)).split("<details>")
    assert (shown.count("| h"), folded.count("| h")) == (10, 2)
    failing = [verdict(run=f"f{n}") for n in range(12)]
    shown, folded = check_formats.as_markdown(report(*failing, *held)).split("<details>")
    assert (shown.count("| f"), folded.count("| f"), folded.count("| h")) == (12, 0, 12)


def test_markdown_of_a_thousand_budgets_fits_a_comment():
    text = check_formats.as_markdown(
        report(*[verdict(run=f"r{n}", reason="x" * 90) for n in range(1000)])
    )
    assert len(text) < 65_536
    assert "does not fit in a comment" in text
    assert text.count("<details>") == text.count("</details>")


def test_a_narrow_table_keeps_the_reason_of_a_failure():
    lines = terminal(blocks(report(verdict(reason="because of this"))), width=60).splitlines()
    assert "  fine|tune optimizer_state: because of this" in lines


def test_a_reason_that_budgets_share_is_told_once():
    runs = [f"run{number}" for number in range(7)]
    found = [verdict(Status.UNKNOWN, run, None, reason=f"m.toml:{run[3:]}: gone") for run in runs]
    found.append(replace(found[0], budget=replace(found[0].budget, metric="weights")))
    names = "; ".join(f"{run} optimizer_state" for run in runs[1:5])
    said = f"run0 optimizer_state, weights; {names}; and 2 more runs"
    assert checked.reasons(report(*found)) == {said: "m.toml:0: gone"}
    assert terminal(blocks(report(*found)), width=400).count("gone") == 1


def test_quiet_shows_failures_and_nothing_when_all_holds():
    quiet = terminal(blocks(MIXED, only_failures=True))
    assert "fine|tune" in quiet
    assert "\n ok" not in quiet
    assert not list(blocks(report(verdict(Status.HOLDS, value=1)), only_failures=True))


@given(value=st.integers(0, 1 << 48), limit=st.integers(0, 1 << 48), near=st.integers(-9, 9))
def test_value_and_limit_have_one_unit_in_which_they_differ(value, limit, near):
    for other in (limit, max(0, value + near)):
        found = verdict(value=value, limit=other, before=None)
        shown = checked.row(found)
        assert shown.value.split()[1] == shown.limit.split()[1]
        assert (shown.value == shown.limit) == (value == other)
        assert found.change is None


def test_json_has_whole_bytes_and_null_for_what_is_not_known():
    data = json.loads(writers(MIXED, 1)["json"]())
    first, second = data["budgets"][:2]
    assert (first["value"], first["limit"], first["difference"]) == (
        300 << 20,
        200 << 20,
        100 << 20,
    )
    assert (second["value"], second["status"]) == (None, "unknown")
    assert data["exit_code"] == 1
    assert data["counts"] == {"over": 1, "unknown": 1, "holds": 1}
