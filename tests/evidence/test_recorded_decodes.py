"""Recorded generations against runs over the stub driver; equal where ``generate`` was recorded."""

import runpy
import shutil
from importlib.metadata import version

import pytest

from memcalc.errors import EstimateError
from tests.evidence.judged import named, runs

_INSTALLED = ".".join(version("torch").split(".")[:2])
# One of a release that is newer than what is pinned is met under itself alone.
RECORDINGS = named("decode-torch", f"newest-decode-torch{_INSTALLED}-")
CACHES = named("decode-caches-", "decode-quant-")
decode = runpy.run_path("benchmarks/decode.py")
SHORT = 40
"""Tokens of the runs that are compared by default."""
NEAR = 0.02
"""What is allocated under another release of PyTorch is as near as this."""


@pytest.fixture(scope="module")
def generated():
    every = [(name, run) for name in RECORDINGS for run in runs(name)]
    return [pair for pair in every if pair[1]["loop"] == "generate"]


def test_a_short_generation_is_met(generated):
    name, run = next(pair for pair in generated if pair[1]["plan"]["generate"] <= SHORT)
    (off,) = decode["compare"](name, [run])
    assert max(abs(off[phase, "allocated"]) for phase in ("prefill", "decode")) <= NEAR, off


@pytest.mark.nightly
def test_every_recorded_generation_is_met(generated):
    for name, run in generated:
        (off,) = decode["compare"](name, [run])
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
    ("name", "run"),
    [(name, run) for name in CACHES for run in runs(name)],
)
def test_every_recorded_cache_is_met(name, run):
    cache, quant = run["plan"].get("cache"), run["plan"].get("quant")
    for kind in {cache, quant} & NEEDED.keys():
        pytest.importorskip(NEEDED[kind])
    if cache == "quantized" and shutil.which("nvcc") is None:
        pytest.skip("quanto compiles its kernels with nvcc, which is not installed")
    try:
        (off,) = decode["compare"](name, [run])
    except EstimateError as error:
        if "Error building extension 'quanto_cuda'" in str(error):
            pytest.skip("quanto's kernels do not compile against this PyTorch")
        raise
    assert max(abs(value) for (_, rung), value in off.items() if rung == "allocated") <= NEAR
