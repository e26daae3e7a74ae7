"""Text from files is shown wherever it goes, and nowhere obeyed."""

import csv
import io
import json
import re
import unicodedata
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import settings as profile
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import replace

from memcalc import untrusted_text
from memcalc.advice.explain.explain import Chapter, explain
from memcalc.advice.remedies.records import Remedy, Search, Trial
from memcalc.budgets.records import Amount, Budget, Report, Rule, Status, Verdict, Where
from memcalc.files.results import Run
from memcalc.records.measurement import Measurement
from memcalc.report import checked, explained, measured, page, plots, predictions, saved
from memcalc.report.blocks import markdown, terminal
from memcalc.report.check_formats import writers
from memcalc.report.page import Document

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07", "\x9b31m", "::error file=a::owned", "  ::set-output name=a::b",
    "##[error]owned", "##vso[task.setvariable variable=a]b", "=cmd|' /C calc'!A0", "@SUM(1)",
    "-1+1", "+1", "[/x][bold]", "[link=http://x]y[/link]", "a\nb", "a\r\n::error::b", "\u202eevil",
    "\u2066x\u2069", "\u200b", "\ud800", "<script>alert(1)</script>", "\"><img src=x>", "&lt;",
    "| a | b |", "```\nx\n```", "[a](javascript:x)", "![a](http://x)", "[a]: http://x", "- [x] y",
    "# a", "> a", "$x^2$", "a$b", "{{ 7*7 }}", "{% raw %}", "%0A::error::", "`a`", "~~a~~", "**a**",
    "\\", "\x00", "\u2028", "]]>", "--", "===", "x" * 300, "\u0301" * 20, "\U000e0041", "",
)  # fmt: skip
ANY = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=40),
    st.lists(st.sampled_from(HOSTILE), min_size=2, max_size=3).map("".join),
)
_STEERING = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
_COMMAND = re.compile(r"^\s*::|##\w*\[", re.MULTILINE)


def steers(text, *, allowed="\n"):
    """Whether text holds signs that a terminal or an editor obeys, or a runner's command."""
    signs = {
        sign for sign in text if sign not in allowed and unicodedata.category(sign) in _STEERING
    }
    return signs or _COMMAND.search(text)


@given(ANY)
def test_a_line_is_one_printable_line_in_which_everything_can_be_seen(text):
    shown = untrusted_text.line(text)
    assert not steers(shown.replace("::", ": :"), allowed="")
    assert shown.isprintable()
    shown.encode("utf-8")
    if text.isprintable() and "##" not in text:
        assert shown == text


@given(ANY)
def test_a_log_has_no_line_that_begins_a_command(text):
    assert not _COMMAND.search(
        untrusted_text.lines(untrusted_text.line(text) + "\n" + untrusted_text.line(text))
    )


@given(ANY, ANY)
def test_markdown_shows_text_as_it_stands_in_a_paragraph_a_list_and_a_table(text, other):
    parser = MarkdownIt("gfm-like", {"linkify": False}).disable("linkify")
    table = untrusted_text.grid(
        ("a", "b"), [(untrusted_text.markdown(text), untrusted_text.markdown(other))]
    )
    tokens = parser.parse(
        f"{untrusted_text.markdown(text)}\n\n- {untrusted_text.markdown(text)}\n\n{table}"
    )
    said = ["".join(c.content for c in t.children) for t in tokens if t.type == "inline"]
    plain, rest = untrusted_text.line(text).strip(), untrusted_text.line(other).strip()
    wanted = [plain, plain, "a", "b", plain, rest]
    squeezed = [" ".join(one.split()) for one in said]
    assert (
        squeezed == [" ".join(w.split()) for w in wanted if w or wanted.index(w) > 2] or not plain
    )
    kinds = {c.type for t in tokens if t.type == "inline" for c in t.children}
    assert kinds <= {"text", "text_special"}


@given(st.lists(ANY, min_size=1, max_size=4))
def test_a_cell_is_no_formula_and_reads_back_as_one_cell(texts):
    out = io.StringIO()
    csv.writer(out).writerow(map(untrusted_text.cell, texts))
    [row] = csv.reader(io.StringIO(out.getvalue()))
    assert len(row) == len(texts)
    assert not any(cell.lstrip().startswith(("=", "+", "-", "@")) for cell in row)
    assert untrusted_text.cell(-5) == -5


@given(ANY)
def test_json_reads_back_as_it_was_and_steers_nothing(text):
    for ascii_only in (True, False):
        shown = untrusted_text.json(
            json.dumps({"a": text, text: [text]}, indent=1, ensure_ascii=ascii_only)
        )
        # Half of a surrogate pair is no text in UTF-8: it stands there as it is escaped.
        read = text.encode("utf-8", "backslashreplace").decode()
        assert json.loads(shown) == {"a": read, read: [read]}
        assert not steers(shown)


@given(ANY, ANY)
def test_an_annotation_is_one_command_and_its_property_ends_where_it_should(text, name):
    command = f"::error title={untrusted_text.github_property(name)}::{untrusted_text.github(text)}"
    match = re.fullmatch(r"::error title=([^:,\r\n]*)::([^\r\n]*)", command)
    assert match is not None
    assert not steers(match[2].replace("::", ": :"), allowed="")


class Strict(HTMLParser):
    """Collects tags; text that became a tag, or closed one, shows."""

    def __init__(self):
        super().__init__()
        self.tags, self.data = set(), []

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        assert not any(name.startswith("on") for name, _ in attrs)

    def handle_data(self, data):
        self.data.append(data)


@pytest.fixture(scope="module")
def told(small_model, settings, cached, traced):
    """An explanation with a remedy that was tried, and one that failed."""
    base = explain(small_model, remedies=False, **settings)
    remedy = Remedy(key="a", title="a", changes=(), cost="a", source="a", rank=0)
    tried = Trial(remedies=(remedy,), figures=base.figures)
    failed = Trial(remedies=(remedy,), error="a")
    found = Search(limit=1, rung="reserved", trials=(tried,), best=tried)
    return replace(base, trials=(tried, failed), search=found)


TAGS = {
    "html", "head", "meta", "title", "style", "body", "h1", "h2", "h3", "p", "small", "code", "br",
    "wbr", "table", "caption", "thead", "tbody", "tr", "th", "td", "figure", "img", "figcaption",
    "div", "span", "section", "ul", "li", "dl", "dt", "dd", "i", "details", "summary", "script",
}  # fmt: skip


def _prediction(base, text):
    plan = replace(base.plan, model=text, optim=text, lora=text or None)
    fit = replace(base.fit, gpu=text) if base.fit is not None else None
    return replace(
        base, plan=plan, head=text, fit=fit, assumptions=(text,), uncounted=(text,),
        unknown={"process_used": text}, versions={text: text}, method=text,
    )  # fmt: skip


def _explanation(base, text):
    groups = tuple(replace(g, module=text, op=text, kept=text) for g in base.peak.groups[:3])
    return replace(
        base,
        prediction=_prediction(base.prediction, text),
        peak=replace(base.peak, groups=groups),
        trials=tuple(
            replace(
                one,
                remedies=(
                    replace(one.remedy, title=text, cost=text, source=text, key=text or "k"),
                ),
            )
            for one in base.trials[:3]
        ),
    )


def _run(prediction, text):
    found = Measurement(
        plan=prediction.plan, device=text, head=text, seq=None, parameters=None, weights=None,
        gradients=None, state=None, phases=(), seconds_per_step=None, samples_per_second=None,
        unknown={"process_used": text},
    )  # fmt: skip
    return Run(plan=prediction.plan, prediction=prediction, measurement=found)


def _texts(traced, base, text):
    """Everything that is made for people, with one text wherever a file can put one."""
    prediction = _prediction(traced.prediction, text)
    explanation = _explanation(base, text)
    run = _run(prediction, text)
    failed = Run(plan=prediction.plan, error=text)
    for blocks in (
        predictions.blocks([prediction]),
        predictions.blocks([prediction, prediction]),
        explained.blocks(explanation, 2),
        measured.blocks([run]),
        measured.blocks([run, failed]),
    ):
        yield "terminal", terminal(blocks, width=60)
        yield "markdown", markdown(blocks)
    yield "csv", predictions.as_csv([prediction])
    yield "json", saved.as_json(explanation)
    where = Where(file="memcalc.toml", line=1)
    budget = Budget(
        run=text, rule=Rule.MAX, metric="weights", amount=Amount(text="1 B", bytes=1), where=where
    )
    over = Verdict(budget=budget, status=Status.OVER, value=2, limit=1, reason=text, remedy=text)
    report = Report(verdicts=(over,), warnings=(text,), notes=(text,))
    yield "terminal", terminal(checked.blocks(report))
    for name, write in writers(report, 1).items():
        if name != "github":
            yield name, write()


def _assert_harmless(traced, base, text):
    for medium, shown in _texts(traced, base, text):
        assert not steers(shown), (medium, text)
        shown.encode("utf-8")
    html = page.notebook(_explanation(base, text))
    reader = Strict()
    reader.feed(html)
    assert reader.tags <= TAGS
    assert not steers(html), text


@pytest.mark.parametrize("text", HOSTILE)
def test_no_report_obeys_what_a_file_says(traced, told, text, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    _assert_harmless(traced, told, text)


@pytest.mark.nightly
@profile(max_examples=1000, deadline=None)
@given(ANY)
def test_no_report_obeys_whatever_a_file_says(traced, told, text):
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(__import__("sys").modules, "matplotlib", None)
        _assert_harmless(traced, told, text)


@pytest.mark.parametrize("text", ["$x^2$", "a$b$c", "\ud800", "\x1b[1m", "<b>", "{x}", "\\$a$"])
def test_a_picture_draws_text_from_a_file_as_text(traced, text):
    prediction = _prediction(traced.prediction, text)
    chapter = Chapter(prediction=prediction)
    html = page.render(Document(chapters=(chapter, chapter)))
    reader = Strict()
    reader.feed(html)
    assert reader.tags <= TAGS
    assert html.count("<script") == 1
    labels = plots.optimizers([prediction]).axes[0].get_yticklabels()
    assert not any(
        label.get_text().count("$") % 2 and "\\$" not in label.get_text() for label in labels
    )
