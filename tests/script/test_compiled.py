"""Compiled programs run Inductor and Triton, and leave the user's caches alone."""

import json
import os
import subprocess
import sys

import pytest

import memcalc
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.question import check
from memcalc.records.trace import Component
from tests.conftest import ROOT

pytestmark = pytest.mark.pinned

TUNED = """
    import os
    os.environ["TRITON_CACHE_DIR"] = "users"
    import torch, triton
    import triton.language as tl

    @triton.autotune([triton.Config({"B": b}) for b in (256, 1024)], key=["n"], cache_results=True)
    @triton.jit
    def double(x, n, B: tl.constexpr):
        at = tl.program_id(0) * B + tl.arange(0, B)
        tl.store(x + at, tl.load(x + at, mask=at < n) * 2, mask=at < n)

    x = torch.zeros(1 << 20, device="cuda")
    double[lambda m: (triton.cdiv(x.numel(), m["B"]),)](x, x.numel())
    torch.compile(lambda one: one.sin() * 2)(x)
"""


LARGE_FIRST = """
    import gc, torch, triton
    import triton.language as tl

    def config(size, stages):
        return triton.Config({"B": size}, num_stages=stages)

    @triton.autotune([config(128, 8), config(32, 1), config(16, 1)], key=["n"])
    @triton.jit
    def multiply(x, y, out, n, B: tl.constexpr):
        at = tl.arange(0, B)[:, None] * n + tl.arange(0, B)[None, :]
        total = tl.zeros((B, B), tl.float32)
        for first in range(0, n, B):
            total += tl.dot(tl.load(x + at + first), tl.load(y + at + first * n))
        tl.store(out + at, total)

    for _ in range(2):
        x = torch.ones(2048, 2048, device="cuda", dtype=torch.float16)
        out = torch.empty(2048, 2048, device="cuda")
        multiply[(1,)](x, x, out, 2048)
        del x, out
        assert multiply.best_config.kwargs == {"B": 32}
    gc.collect()
    assert torch.cuda.memory_allocated() == 0
"""


@pytest.fixture(autouse=True)
def _forked():
    """A program that is compiled has a fresh process, as a user's has."""


@pytest.mark.nightly
def test_a_second_simulation_gives_the_first_and_the_users_caches_are_as_they_were(run, tmp_path):
    first, second = run(TUNED), run(TUNED)
    assert first.ending.code == second.ending.code == 0
    assert first.traced.prediction.peak.allocated == second.traced.prediction.peak.allocated
    assert any("torch.compile took" in one for one in first.traced.prediction.assumptions)
    assert any("first configuration" in one for one in first.traced.prediction.assumptions)
    assert not (tmp_path / "users").exists()


@pytest.mark.nightly
def test_a_kernel_takes_the_first_configuration_that_fits_and_its_arguments_are_freed(run):
    assert run(LARGE_FIRST, gpu="h100-sxm").ending.code == 0


@pytest.mark.nightly
def test_a_compiled_plan_takes_less_and_cuda_graphs_keep_a_pool(small_model):
    plan = {"model": small_model, "batch": 4, "seq": 64, "gpu": "t4"}
    eager, compiled, graphs = (
        memcalc.estimate(**plan, compile=mode) for mode in (None, "default", "reduce-overhead")
    )
    assert graphs.peak.allocated < compiled.peak.allocated < eager.peak.allocated
    assert compiled.components[Component.WEIGHTS] == eager.components[Component.WEIGHTS]
    assert any("torch.compile took" in one for one in compiled.assumptions)
    assert any("CUDA graphs" in one for one in graphs.assumptions)


@pytest.mark.nightly
def test_an_older_release_compiles_with_its_own_triton(small_model, monkeypatch):
    """Its compiler's tensors have no memory that could be looked at."""
    monkeypatch.delenv("HF_HUB_OFFLINE")  # The release is fetched.
    plan = {"model": small_model, "batch": 64, "seq": 256, "gpu": "t4", "torch": "2.8"}
    eager, compiled = (memcalc.estimate(**plan, compile=mode) for mode in (None, "default"))
    assert compiled.versions["torch"].startswith("2.8")
    assert 0 < compiled.peak.allocated < eager.peak.allocated


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"compile": "max-autotune"}, "choose one of default, reduce-overhead"),
        ({"compile": "default", "target": "cpu"}, "supported on GPUs only"),
        ({"compile": "default", "inference": True}, "leave out compile, or inference"),
    ],
)
def test_what_is_not_compiled_is_one_sentence(settings, said):
    with pytest.raises(UsageError, match=said):
        make({"model": "gpt2", **settings})


def test_without_a_c_compiler_a_compiled_plan_is_refused(monkeypatch):
    monkeypatch.setenv("CC", "there-is-none")
    with pytest.raises(UsageError, match="install gcc"):
        check(make({"model": "gpt2", "compile": "default"}))


RECORDED = json.loads((ROOT / "evidence" / "compiled.json").read_text())["programs"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", RECORDED)
def test_a_compiled_program_takes_what_was_written_down(tmp_path, name):
    script = ROOT / "benchmarks" / "compiled_programs.py"
    subprocess.run(
        [sys.executable, str(script), "-o", "found.json", name],
        cwd=tmp_path,
        env={**os.environ, "MEMCALC_CACHE": str(tmp_path / "cache")},
        check=True,
    )
    assert json.loads((tmp_path / "found.json").read_text())["programs"] == {name: RECORDED[name]}


@pytest.mark.nightly
def test_what_is_followed_breaks_no_full_graph(run):
    found = run(
        """
        import torch
        inner = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
        model = torch.nn.Sequential(inner, torch.nn.Linear(8, 8)).cuda()
        step = torch.compile(lambda x: model(x).sum(), fullgraph=True, backend="aot_eager")
        step(torch.zeros(4, 8, device="cuda")).backward()
        """
    )
    assert found.ending.code == 0
