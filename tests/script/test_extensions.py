"""Numbers that compiled code of packages writes are not known, and trackers decide nothing."""

import subprocess
import sysconfig
from pathlib import Path

import pytest

SOURCE = """
#include <torch/library.h>
#include <torch/csrc/utils/pybind.h>
#include <ATen/ATen.h>
at::Tensor count(const at::Tensor& x) { return at::zeros({4}, x.options()); }
void fill(at::Tensor x) {}
TORCH_LIBRARY(own, m) { m.def("count(Tensor x) -> Tensor"); m.def("fill(Tensor(a!) x) -> ()"); }
TORCH_LIBRARY_IMPL(own, CUDA, m) { m.impl("count", count); m.impl("fill", fill); }
PYBIND11_MODULE(own, m) { m.def("count", &count); m.def("fill", &fill); }
"""
USED = """
    import torch
    import own
    net = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        net(torch.randn(8, 64).cuda()).sum().backward()
        optimizer.step(); optimizer.zero_grad()
        given = torch.ones(4).cuda()
        written = {call}
        if (given if written is None else written).sum().item() > 99:
            torch.zeros(64 << 20, device="cuda")
"""
WATCHED = """
    import os, torch, torch.nn as nn, wandb
    os.environ["WANDB_MODE"] = "offline"
    wandb.init(project="x")
    net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    wandb.watch(net, log="all", log_freq=1)
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(6):
        x = torch.randn(128, 512, device="cuda")
        loss = nn.functional.mse_loss(net(x), x)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        wandb.log({"loss": loss.item()})
    wandb.finish()
"""


@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    """A folder with a module in C++ that has two operators of its own, without kernels."""
    import torch
    from torch.utils import cpp_extension

    folder = tmp_path_factory.mktemp("own")
    (folder / "own.cpp").write_text(SOURCE)
    headers = (*cpp_extension.include_paths(), sysconfig.get_path("include"))
    library = Path(torch.__file__).parent / "lib"
    subprocess.run(
        [
            *("g++", "-O0", "-fPIC", "-shared", "-std=c++20", "own.cpp", "-o", "own.so"),
            *(f"-I{one}" for one in headers),
            *(f"-L{library}", "-ltorch", "-ltorch_cpu", "-lc10", "-ltorch_python"),
        ],
        check=True,
        cwd=folder,
    )
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize(
    "call",
    [f"{owner}.{name}(given)" for owner in ("own", "torch.ops.own") for name in ("count", "fill")],
)
def test_what_compiled_code_of_a_package_writes_is_not_known(run, extension, tmp_path, call):
    (tmp_path / "own.so").symlink_to(extension / "own.so")
    prediction = run(USED.replace("{call}", call), gpu="t4").traced.prediction
    assert "decide at train.py:11" in prediction.assumptions[0]
    assert "train.py:11 (256.0 MiB more)" in prediction.assumptions[0]


def test_a_tracker_that_watches_gradients_decides_nothing_by_them(run):
    pytest.importorskip("wandb")
    found = run(WATCHED, gpu="t4", steps=0)
    assert found.ending.code == 0
    assert not found.ending.decides
    assert found.traced.prediction.peak.allocated > 24 * 2 * 512 * 2048
    assert not any("trackers are off" in one for one in found.traced.prediction.assumptions)
