"""Decodes and single passes over quantised weights, recorded from files on, against estimates."""

import json
import runpy

import pytest

from memcalc.catalog.quantised import BITSANDBYTES, TORCHAO
from tests.evidence.test_standin import STANDIN

(RECORDING,) = STANDIN.glob("decode-quant-*.json")
RUNS = json.loads(RECORDING.read_text())["runs"]
decode = runpy.run_path("benchmarks/decode.py")
ALWAYS = "gpt2 forward"
"""One pass of one model; the rest at night."""


def _cases():
    for run in RUNS:
        name = decode["label"](run)
        marks = () if name.startswith(ALWAYS) else (pytest.mark.nightly,)
        yield pytest.param(run, id=name, marks=marks)


@pytest.mark.parametrize("run", _cases())
def test_every_phase_is_equal_on_every_rung(run):
    if run["plan"]["quant"] in TORCHAO:
        pytest.importorskip("torchao")
    (off,) = decode["compare"](RECORDING, [run])
    passes = {"forward"} if run["loop"] == "forward" else {"prefill", "decode"}
    assert {phase for phase, _ in off} == {"load", *passes}
    assert not any(off.values()), off


def test_recordings_cover_what_they_claim():
    plans = [run["plan"] for run in RUNS]
    assert len(plans) >= 20
    assert {plan["quant"] for plan in plans} == {*BITSANDBYTES, *TORCHAO}
    assert {"bf16", "fp16", "fp32"} == {plan["precision"] for plan in plans}
    assert {1, 4, 16} <= {plan["batch"] for plan in plans}
    assert "static" in {plan.get("cache") for plan in plans}
    assert any(plan.get("beams", 1) > 1 for plan in plans)
    assert len({run["config"]["model_type"] for run in RUNS}) >= 6
    assert {run["loop"] for run in RUNS} == {"generate", "forward"}
