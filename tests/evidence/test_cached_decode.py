"""Decodes with caches that are offloaded or quantised, as recorded, against estimates."""

import json
import runpy

import pytest

from tests.evidence.test_standin import STANDIN

(RECORDING,) = STANDIN.glob("decode-caches-*.json")
RUNS = json.loads(RECORDING.read_text())["runs"]
PACKAGES = {"quantized": "optimum.quanto", "quantized-hqq": "hqq"}
ALWAYS = "llama generate precision=bf16 batch=4 seq=512 generate=16 cache=offloaded"
"""The rest at night."""
decode = runpy.run_path("benchmarks/decode.py")


def _cases():
    for run in RUNS:
        name = decode["label"](run)
        yield pytest.param(run, id=name, marks=() if name == ALWAYS else (pytest.mark.nightly,))


@pytest.mark.parametrize("run", _cases())
def test_every_phase_is_equal_on_every_rung(run):
    package = PACKAGES.get(run["plan"]["cache"])
    if package is not None:
        pytest.importorskip(package)
    (off,) = decode["compare"](RECORDING, [run])
    assert {phase for phase, _ in off} == {"load", "prefill", "decode"}
    # HQQ keeps one number in 32 bits that is taken for one in 16.
    most = 1e-6 if package == "hqq" else 0
    assert all(abs(value) <= most for value in off.values()), off


def test_recordings_cover_what_they_claim():
    plans = [run["plan"] for run in RUNS]
    assert {plan["cache"] for plan in plans} == {
        *("offloaded", "offloaded-static"),
        *("quantized", "quantized-hqq", "quantized-fp8"),
    }
    for kind in ("offloaded", "quantized"):
        assert any(plan["cache"] == kind and plan.get("beams", 1) > 1 for plan in plans)
    # Past the tokens that are gathered before they are quantised.
    assert any(plan["cache"] == "quantized" and plan["generate"] > 256 for plan in plans)
    assert any("quant" in plan for plan in plans)
    assert {run["config"]["model_type"] for run in RUNS} >= {"llama", "gemma3_text", "deepseek_v3"}
