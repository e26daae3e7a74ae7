"""Decoding as recorded with PyTorch's CUDA code over the stand-in driver, against estimates."""

import json
import runpy
import statistics

import pytest

from tests.evidence.test_standin import STANDIN

RECORDINGS = [
    *sorted(STANDIN.glob("decode-torch*.json")),
    *STANDIN.glob("newest-decode-*.json"),
]
decode = runpy.run_path("benchmarks/decode.py")
SHORT = 40
"""Tokens of the runs that are compared by default; benchmarks/decode.py compares all."""


@pytest.fixture(scope="module")
def runs():
    return [(path, run) for path in RECORDINGS for run in json.loads(path.read_text())["runs"]]


@pytest.mark.parametrize("count", [1, pytest.param(8, marks=pytest.mark.nightly)])
def test_recorded_decodes_are_met_within_the_bounds_that_are_promised(runs, count):
    off = {}
    short = [pair for pair in runs if pair[1]["plan"]["generate"] <= SHORT]
    # One of each kind at night.
    for path, run in short[:: len(short) // count]:
        off[decode["label"](run)] = next(decode["compare"](path, [run]))
    assert len(off) >= count
    for phase in ("prefill", "decode"):
        allocated = {name: abs(found[phase, "allocated"]) for name, found in off.items()}
        reserved = {name: abs(found[phase, "reserved"]) for name, found in off.items()}
        assert statistics.median(allocated.values()) <= 0.001, allocated
        assert max(allocated.values()) <= 0.01, allocated
        assert max(reserved.values()) <= 0.03, reserved


@pytest.mark.nightly
def test_every_recorded_decode_is_met(runs):
    for path, run in runs:
        off = next(decode["compare"](path, [run]))
        for phase in ("prefill", "decode"):
            assert abs(off[phase, "allocated"]) <= 0.01, decode["label"](run)
            assert abs(off[phase, "reserved"]) <= 0.03, decode["label"](run)


def test_recordings_of_decoding_cover_what_they_claim(runs):
    plans = [run["plan"] for _, run in runs]
    assert len(runs) >= 20
    assert {"static", "sliding"} <= {plan.get("cache") for plan in plans}
    assert any(plan.get("beams", 1) > 1 for plan in plans)
    kinds = {run["config"]["model_type"] for _, run in runs}
    assert {"llama", "deepseek_v3", "t5", "mistral", "qwen3_next"} <= kinds
    assert {run["loop"] for _, run in runs} == {"greedy", "generate"}
