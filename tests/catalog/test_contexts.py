"""Readings of the CUDA context: every one has a source, and the docs show them all."""

import pathlib
import runpy

import pytest

from memcalc.catalog import contexts, gpus
from memcalc.catalog.contexts import Stage
from memcalc.units import MIB, printed_bytes

ROOT = pathlib.Path(__file__).parent.parent.parent


def test_a_reading_is_possible():
    for reading in contexts.table():
        assert gpus.find(reading.gpu).name == reading.gpu
        assert 0 < reading.low <= reading.high < 8 << 30
        # Two or three rounded figures leave open what half of their last digits leave open.
        assert reading.high - reading.low < 40 * MIB
        assert reading.source
        assert reading.measured or reading.source.startswith("https://")


def test_no_reading_is_there_twice():
    known = [(r.gpu, r.stage, r.low, r.source) for r in contexts.table()]
    assert len(known) == len(set(known))


def test_the_table_is_wide():
    assert len(contexts.table()) >= 40
    assert len({r.gpu for r in contexts.table()}) >= 18


def test_only_readings_of_lazily_loaded_kernels_count_as_comparable():
    eager = [r for r in contexts.table() if not r.lazy]
    assert {r.stage for r in eager} == {Stage.TENSOR, Stage.TRAINING}
    lazy = [r.high for r in contexts.table() if r.lazy and not r.aside and r.gpu == "RTX 3090"]
    assert max(lazy) < min(r.low for r in eager if r.gpu == "RTX 3090") / 2


def test_an_out_of_memory_message_gives_what_is_left_and_how_sure_that_is():
    # github.com/hpcaitech/Open-Sora/issues/697: 14.67 - 14.55 GiB is 122.88 MiB, less 23.38.
    low, high = contexts.outside("14.67 GiB", ["14.55 GiB", "23.38 MiB"])
    assert low < 99.5 * MIB < high
    # Half of 0.01 GiB twice, and half of 0.01 MiB.
    assert (high - low) / MIB == pytest.approx(2 * (5.12 + 5.12 + 0.005), abs=1e-4)


@pytest.mark.parametrize(
    ("text", "half"), [("555 MiB", MIB // 2), ("1 KiB", 512), ("7 B", 0), ("1.5 GiB", MIB * 51.2)]
)
def test_a_printed_figure_stands_for_all_that_round_to_it(text, half):
    low, high = printed_bytes(text)
    assert (high - low) / 2 == pytest.approx(half, abs=1)


def test_the_docs_show_every_reading():
    path = ROOT / "docs" / "memory.md"
    script = runpy.run_path(str(ROOT / "scripts" / "make_context_table.py"))
    assert script["document"](path.read_text()) == path.read_text()
    assert all(reading.source in path.read_text() for reading in contexts.table())
