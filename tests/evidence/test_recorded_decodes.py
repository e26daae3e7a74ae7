"""Recorded generations against runs over the stub driver; equal where ``generate`` was recorded."""

import json
import runpy
import shutil
from importlib.metadata import version

import pytest

from memcalc.errors import EstimateError
from tests.evidence.judged import STANDIN

_INSTALLED = ".".join(version("torch").split(".")[:2])
RECORDINGS = [
    *sorted(STANDIN.glob("decode-torch*.json")),
    # Of a release that is newer than what is pinned: it is met under itself alone.
    *STANDIN.glob(f"newest-decode-torch{_INSTALLED}-*.json"),
]
CACHES = [*STANDIN.glob("decode-caches-*.json"), *STANDIN.glob("decode-quant-*.json")]
decode = runpy.run_path("benchmarks/decode.py")
SHORT = 40
"""Tokens of the runs that are compared by default."""
NEAR = 0.02
"""What is allocated under another release of PyTorch is as near as this."""


@pytest.fixture(scope="module")
def generated():
    every = [(path, run) for path in RECORDINGS for run in json.loads(path.read_text())["runs"]]
    return [pair for pair in every if pair[1]["loop"] == "generate"]


def test_a_short_generation_is_met(generated):
    path, run = next(pair for pair in generated if pair[1]["plan"]["generate"] <= SHORT)
    (off,) = decode["compare"](path, [run])
    assert max(abs(off[phase, "allocated"]) for phase in ("prefill", "decode")) <= NEAR, off


@pytest.mark.nightly
def test_every_recorded_generation_is_met(generated):
    for path, run in generated:
        (off,) = decode["compare"](path, [run])
        for phase in ("prefill", "decode"):
            assert abs(off[phase, "allocated"]) <= NEAR, decode["label"](run)


NEEDED = {
    "quantized": "optimum.quanto",
    "quantized-hqq": "hqq",
    "torchao-int8": "torchao",
    "torchao-float8": "torchao",
}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("path", "run"),
    [(path, run) for path in CACHES for run in json.loads(path.read_text())["runs"]],
)
def test_every_recorded_cache_is_met(path, run):
    cache, quant = run["plan"].get("cache"), run["plan"].get("quant")
    for kind in {cache, quant} & NEEDED.keys():
        pytest.importorskip(NEEDED[kind])
    if cache == "quantized" and shutil.which("nvcc") is None:
        pytest.skip("quanto compiles its kernels with nvcc, which is not installed")
    try:
        (off,) = decode["compare"](path, [run])
    except EstimateError as error:
        if "Error building extension 'quanto_cuda'" in str(error):
            pytest.skip("quanto's kernels do not compile against this PyTorch")
        raise
    assert max(abs(value) for (_, rung), value in off.items() if rung == "allocated") <= NEAR
