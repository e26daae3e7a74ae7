"""Pictures, pages, notebooks and snapshots of a traced plan."""

import io
import json
import pickle
import re
import shutil
import subprocess
from html import unescape as html_unescape
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from msgspec.structs import replace

from memcalc.advice.explain.difference import difference
from memcalc.advice.explain.explain import chapter, chapter_of_saved
from memcalc.advice.explain.timeline import save_predicted_snapshot, timeline
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
from memcalc.files.results import Run
from memcalc.files.snapshot_reader import breakdown, read_snapshot
from memcalc.records.measurement import Measurement, PhaseReading
from memcalc.records.trace import Component
from memcalc.report import drawing, page, plots, terminal
from memcalc.report.page import Document, hero
from memcalc.report.rows import STYLES


@pytest.fixture(scope="module")
def html(traced, explained):
    return page.render(Document(chapters=(chapter(traced),), explanation=explained))


class Reader(HTMLParser):
    """Checks that tags close in order, and collects what a page points to and says."""

    def __init__(self):
        super().__init__()
        self.open, self.links, self.words = [], [], []

    def handle_starttag(self, tag, attrs):
        if tag not in ("meta", "img", "wbr", "br", "path"):
            self.open.append(tag)
        self.links += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        if tag != "path":
            assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_a_page_needs_nothing_beside_itself(html):
    reader = Reader()
    reader.feed(html)
    assert reader.open == []
    assert reader.links == []
    assert len(html) < 300 << 10


def test_a_page_names_no_option_of_another_verb_and_no_command_for_what_stands_on_it(html, traced):
    assert "more kinds" in html
    assert "--top" not in html
    assert "next:" not in html
    assert "next:" in page.render(Document(chapters=(chapter(traced),)))


def test_the_tables_of_a_page_sum_to_the_peak(html, explained):
    peak = explained.peak.requested
    rows = re.findall(r"<tr class=total>(.*?)</tr>", html)
    assert rows
    assert all(f"{peak:,} bytes" in row for row in rows)
    body = html[html.index("Alive at the peak") : html.index("What would need less")]
    first = [
        re.match(r"<td class=n><span title=\"([\d,]+) bytes", cells)
        for cells in re.findall(r"<tr(?: class=more)?>(.*?)</tr>", body)
    ]
    assert sum([int(found[1].replace(",", "")) for found in first if found]) == peak


def test_the_bar_of_a_page_is_the_whole_card(traced):
    found = hero(traced.prediction)
    assert sum(width for width, _, _ in found.parts) == pytest.approx(100)
    assert found.kind == "fits"
    assert found.parts[-1][2].startswith("free ")


def test_a_drawing_shows_the_peak_and_says_what_happened_there(traced):
    line = timeline(traced.trace, traced.prediction.plan, engine.player())
    for one in (drawing.whole(line), drawing.close_up(line)):
        assert len(one.moments) == len(one.line.requested) == len(one.bands[-1].top)
        assert one.bands[-1].top == one.line.requested
        assert one.y(one.line.requested[one.line.peak]) == min(map(one.y, one.line.requested))
        assert line.made[line.peak] in one.moments[one.line.peak]


def _contrast(first, second):
    def light(color):
        parts = (int(color[i : i + 2], 16) / 255 for i in (1, 3, 5))
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return sum(w * p for w, p in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    high, low = sorted((light(first), light(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_text_can_be_read_in_light_and_in_dark(html):
    for declared in re.findall(r":root \{([^}]*--good[^}]*)\}", html):
        colors = dict(re.findall(r"--(\w+): (#[0-9a-f]{3,6})", declared))
        full = {
            n: c if len(c) == 7 else "#" + "".join(2 * d for d in c[1:]) for n, c in colors.items()
        }
        for ink in ("ink", "dim", "good", "bad", "warn"):
            for paper in ("paper", "soft"):
                assert _contrast(full[ink], full[paper]) >= 4.5, (ink, paper)


CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
PROBE = """<script>
const before = document.querySelector(".timeline output").textContent;
const svg = document.querySelector(".timeline svg");
svg.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
document.title = JSON.stringify({
  wide: document.documentElement.scrollWidth, window: window.innerWidth,
  before, after: document.querySelector(".timeline output").textContent });
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here")
@pytest.mark.nightly
@pytest.mark.parametrize("width", [390, 1280])
def test_a_browser_shows_the_page_without_scrolling_sideways(html, tmp_path, width):
    path = tmp_path / "page.html"
    path.write_text(html.replace("</body>", PROBE))
    done = subprocess.run(
        [
            *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom"),
            *(f"--window-size={width},900", f"--user-data-dir={tmp_path / 'profile'}"),
            path.as_uri(),
        ],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    found = json.loads(html_unescape(re.search(r"<title>(.*?)</title>", done.stdout)[1]))
    assert found["wide"] <= found["window"]
    assert found["before"] != found["after"]


def test_the_same_picture_is_the_same_file(traced):
    line = timeline(traced.trace, traced.prediction.plan, engine.player())
    assert plots.save(plots.timeline(line, "x"), "svg") == plots.save(
        plots.timeline(line, "x"), "svg"
    )


@pytest.mark.parametrize(("format", "magic"), [("png", b"\x89PNG"), ("pdf", b"%PDF")])
def test_a_picture_can_be_saved_as(traced, format, magic):
    assert plots.save(plots.optimizers([traced.prediction]), format).startswith(magic)


def test_every_component_has_a_style_told_apart_without_colour():
    assert set(STYLES) == set(Component)
    assert len({style.color for style in STYLES.values()}) == len(STYLES)
    # Plain ones differ in lightness instead.
    plain = [style.color for style in STYLES.values() if not style.hatch]
    light = sorted(sum(int(color[i : i + 2], 16) * w for i, w in ((1, 3), (3, 6), (5, 1)))
                   for color in plain)  # fmt: skip
    assert all(high - low > 250 for low, high in pairwise(light))
    hatches = [style.hatch for style in STYLES.values() if style.hatch]
    assert len(set(hatches)) == len(hatches)
    assert len({style.letter for style in STYLES.values()}) == len(STYLES)


def _measured(prediction, more):
    readings = tuple(
        PhaseReading(
            step=3, phase=p.phase, requested=p.requested, allocated=p.allocated + more,
            active=p.allocated + more, reserved=p.reserved + more,
        )
        for p in prediction.phases
    )  # fmt: skip
    measurement = Measurement(
        plan=prediction.plan, device="T4", head=prediction.head, seq=prediction.seq,
        parameters=prediction.parameters, weights=0, gradients=0, state=None, phases=readings,
        seconds_per_step=None, samples_per_second=None,
    )  # fmt: skip
    return Run(plan=prediction.plan, prediction=prediction, measurement=measurement)


def test_a_picture_of_measured_runs_has_a_bar_as_long_as_each_side(traced):
    run = _measured(traced.prediction, 5 << 20)
    lengths = [bar.get_width() * (1 << 20) for bar in plots.accuracy([run]).axes[0].patches]
    allocated = traced.prediction.peak.allocated
    assert lengths == pytest.approx([allocated, allocated + (5 << 20)])
    assert "estimated and measured" in page.render(Document(runs=(run,)))
    with pytest.raises(UsageError, match="nothing to compare"):
        plots.accuracy([Run(plan=run.plan)])


def test_several_plans_stand_side_by_side(traced):
    other = replace(traced.prediction, plan=replace(traced.prediction.plan, optim="sgd"))
    html = page.render(Document(chapters=tuple(chapter(traced) for _ in range(2))))
    assert "Side by side" in html
    figure = plots.optimizers([traced.prediction, other])
    assert {label.get_text() for label in figure.axes[0].get_yticklabels()} == {"adamw", "sgd"}


def test_a_terminal_shows_each_component_by_its_letter(traced):
    text = terminal.timeline(
        timeline(traced.trace, traced.prediction.plan, engine.player()), width=80
    )
    assert {"W", "O", "a"} <= set("".join(re.findall(r"[┤│](.*)│", text)))
    assert "\x1b" not in text
    assert "forward" in text
    assert max(map(len, text.splitlines()[:-1])) <= 80


def test_a_notebook_shows_the_card_of_the_page_with_its_whole_legend_and_tables(traced, explained):
    for shown in (traced.prediction._repr_html_(), explained._repr_html_()):
        reader = Reader()
        reader.feed(shown)
        assert reader.open == []
        assert len(reader.links) == 0
        card, _, tables = shown.partition("<table")
        for name, size in traced.prediction.components.items():
            if size:
                assert STYLES[name].words in card
        assert "CUDA context and libraries" in card
        assert "next:" not in shown
        assert f"{traced.prediction.peak.requested:,}" in tables


def test_an_answer_is_a_dataframe_with_exact_bytes(traced, explained):
    pytest.importorskip("pandas")
    (row,) = traced.prediction.to_dataframe().to_dict("records")
    assert row["reserved"] == traced.prediction.peak.reserved
    assert row["weights"] == traced.prediction.components[Component.WEIGHTS]
    frame = explained.to_dataframe()
    assert len(frame) > 10


def test_a_prediction_draws_itself_and_names_its_parts(traced):
    assert "activations" in traced.prediction.plot().axes[0].get_legend_handles_labels()[1]


def test_a_saved_estimate_gets_its_timeline_back_or_says_why_not(traced, cached, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(cached))
    saved = traced.prediction
    older = replace(saved, versions={"torch": "2.11.0"})
    changed = replace(older, peak=replace(saved.peak, requested=saved.peak.requested - 1))
    closed = replace(saved, method="analytic")
    answers = Answers()
    assert chapter_of_saved(saved, answers).line == timeline(
        traced.trace, saved.plan, engine.player()
    )
    found = chapter_of_saved(older, answers)
    assert found.line is not None
    assert "2.11.0 then" in found.notes[0]
    refused = chapter_of_saved(changed, answers)
    assert refused.line is None
    assert refused.prediction == changed
    assert "other figures than the saved ones (torch 2.11.0 then" in refused.notes[0]
    assert "analytic method" in chapter_of_saved(closed, answers).notes[0]


def test_a_predicted_snapshot_shows_modules_and_opens_in_pytorchs_viewer(traced, tmp_path):
    from torch.cuda import _memory_viz as viz

    path = tmp_path / "predicted.pickle"
    save_predicted_snapshot(traced, path, engine.player())
    held = breakdown(read_snapshot(path))
    line = timeline(traced.trace, traced.prediction.plan, engine.player())
    assert held.levels.requested == line.requested[-1]
    assert held.levels.allocated == line.allocated[-1]
    assert held.levels.reserved == line.reserved[-1] == traced.prediction.peak.reserved
    assert any("transformer.h.1.mlp.c_fc" in site.name for site in held.sites)
    snapshot = pickle.load(io.BytesIO(path.read_bytes()))
    assert viz.trace(snapshot).startswith("Device 0")
    assert viz.segsum(snapshot)
    assert "snapshot.pickle" in viz.trace_plot(snapshot)
    assert "snapshot.pickle" in viz.segment_plot(snapshot)


def test_two_answers_on_one_page_begin_with_what_changed(traced):
    both = chapter(traced), chapter(traced)
    html = page.render(Document(chapters=both, difference=difference(*both)))
    assert html.index("no figure changed") < html.index("Side by side")
