"""The real cuDNN plans below PyTorch for simulated GPUs."""

import ctypes
import json
import os
import subprocess
import sys

import pytest

from memcalc.engine.cudnn import library, loading
from memcalc.engine.stub import build
from memcalc.engine.stub import load as stub
from tests.engine import cudnn_process
from tests.engine.cudnn_process import CAPABILITIES, ROOT, CudnnProcess, settings

CONVOLUTIONS = """
    from torch import nn
    from torch.nn.functional import conv2d
    half, last = torch.float16, torch.channels_last
    cases = {
        "plain": (nn.Conv2d(64, 128, 3, padding=1), (8, 64, 28, 28)),
        "pointwise": (nn.Conv2d(64, 256, 1, bias=False), (8, 64, 28, 28)),
        "strided": (nn.Conv2d(3, 64, 7, 2, 3, bias=False), (8, 3, 112, 112)),
        "grouped": (nn.Conv2d(128, 128, 3, padding=1, groups=32), (8, 128, 28, 28)),
        "depthwise": (nn.Conv2d(96, 96, 7, padding=3, groups=96), (8, 96, 28, 28)),
        "dilated": (nn.Conv2d(64, 64, 3, padding=2, dilation=2), (8, 64, 28, 28)),
        "transposed": (nn.ConvTranspose2d(64, 32, 2, 2), (8, 64, 14, 14)),
        "1d": (nn.Conv1d(80, 256, 3, padding=1), (8, 80, 500)),
        "3d": (nn.Conv3d(16, 32, 3, padding=1), (2, 16, 16, 32, 32)),
    }
    def train(module, shape, **more):
        module = module.cuda().to(**more)
        x = torch.empty(shape, device="cuda", requires_grad=True)
        y = module(x.to(**more))
        y.sum().backward()
        assert x.grad.shape == x.shape
        assert module.weight.grad.shape == module.weight.shape
        return str(y.grad_fn.name())
    for name, (module, shape) in cases.items():
        answer[name] = train(module, shape)
        answer[name + " half"] = train(module, shape, dtype=half)
        if len(shape) == 4:
            answer[name + " last"] = train(module, shape, dtype=half, memory_format=last)
    answer["used"] = loading.is_used()
"""
RECURRENT = """
    from torch.nn.utils.rnn import pack_padded_sequence
    for kind in ("LSTM", "GRU", "RNN"):
        layer = getattr(torch.nn, kind)(64, 128, 2, bidirectional=True, dropout=0.1).cuda()
        x = torch.empty(20, 4, 64, device="cuda", requires_grad=True)
        packed = pack_padded_sequence(x, torch.tensor([20, 18, 7, 2]))
        for name, given in ((kind, x), (kind + " packed", packed)):
            y = layer(given)[0]
            y = y.data if name != kind else y
            answer[name] = [y.grad_fn.name(), list(y.shape)]
            y.sum().backward()
            assert layer.weight_hh_l1.grad.shape == layer.weight_hh_l1.shape
"""
OTHERS = ("7.5", "8.0", "10.0")
PLANNED = (
    ((32, 64, 56, 56), (64, 64, 3, 3), 1),
    ((16, 128, 28, 28), (256, 128, 3, 3), 1),
    ((8, 32, 64, 64), (96, 32, 5, 5), 2),
    ((8, 256, 14, 14), (512, 256, 1, 1), 0),
)


@pytest.fixture(scope="module")
def over_cudnn():
    process = CudnnProcess()
    yield process.run
    process.close()


@pytest.mark.parametrize(
    "capability",
    [
        pytest.param(one, marks=[] if one in ("7.5", "9.0", "12.0") else pytest.mark.nightly)
        for one in CAPABILITIES
    ],
)
def test_convolutions_train_by_the_real_cudnn(over_cudnn, capability):
    answer = over_cudnn(CONVOLUTIONS, capability)
    assert answer.pop("used") is True
    assert all("Convolution" in name for name in answer.values())
    assert len(answer) == 25


@pytest.mark.parametrize(
    "capability", ["9.0", *(pytest.param(one, marks=pytest.mark.nightly) for one in OTHERS)]
)
def test_workspaces_are_those_of_the_librarys_own_plans(over_cudnn, capability):
    device = CAPABILITIES[capability]
    words = {
        "maxGridSize": [2147483647, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": 65536,
        "multiProcessorCount": device["PROCESSORS"],
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 49152,
        "maxSharedMemoryPerBlockOptin": device["SHARED_OF_BLOCK"],
        "reservedSharedMemoryPerBlock": 0 if capability == "7.5" else 1024,
        "maxRegistersPerSM": 65536,
        "maxCtasPerSM": 32,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": device["THREADS"],
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": 80 << 30,
        "smClockRateKHz": 1980000,
        "memClockRateKHz": 2619000,
        "l2CacheSize": 40 << 20,
        "cudaDeviceId": 0,
        "deviceVer": 10 * device["CAPABILITY"],
        "driverVer": 13000,
        "memoryBusWidth": 5120,
        "deviceName": "GPU",
    }
    float32 = 0
    asked = {"words": words, "convolutions": [[*one, float32] for one in PLANNED]}
    script = ROOT / "tests" / "engine" / "cudnn_direct.py"
    folders = (cudnn_process.cudnn().folder, str(stub.libraries()))
    told = subprocess.run(
        [sys.executable, str(script), *folders, json.dumps(asked)],
        capture_output=True,
        text=True,
        check=True,
    )
    direct = json.loads(told.stdout)
    code = f"""
    torch.backends.cudnn.allow_tf32 = True
    answer = []
    for image, weight, padding in {PLANNED}:
        x, w = torch.empty(image, device="cuda"), torch.empty(weight, device="cuda")
        answer.append(scratch(lambda: torch.nn.functional.conv2d(x, w, padding=padding)))
    """
    assert over_cudnn(code, capability) == direct
    assert any(direct)


def test_a_program_that_needs_no_cudnn_loads_nothing(over_cudnn):
    answer = over_cudnn(
        """
        layer = torch.nn.TransformerEncoderLayer(64, 4, batch_first=True).cuda()
        layer(torch.empty(2, 16, 64, device="cuda")).sum().backward()
        answer = [torch.backends.cudnn.version(), loading.is_used(), failure()]
        """,
        capability="8.0",
    )
    major, minor, patch = cudnn_process.cudnn().reported[:3]
    assert answer == [10_000 * major + 100 * minor + patch, False, ""]


@pytest.mark.parametrize("capability", ["8.0", "9.0", "10.0"])
def test_attention_runs_by_cudnn(over_cudnn, capability):
    answer = over_cudnn(
        """
        from torch.nn.attention import SDPBackend, sdpa_kernel
        from torch.nn.functional import scaled_dot_product_attention as attention
        q = torch.empty(2, 8, 512, 64, device="cuda", dtype=torch.half, requires_grad=True)
        for causal in (False, True):
            with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                y = attention(q, q, q, is_causal=causal)
            answer[str(causal)] = y.grad_fn.name()
            y.sum().backward()
            assert q.grad.shape == q.shape
        """,
        capability,
    )
    assert set(answer.values()) == {"ScaledDotProductCudnnAttentionBackward0"}


@pytest.mark.parametrize("capability", CAPABILITIES)
def test_recurrent_layers_train_by_cudnn(over_cudnn, capability):
    answer = over_cudnn(RECURRENT, capability)
    assert len(answer) == 6
    for name, (node, shape) in answer.items():
        assert node == "CudnnRnnBackward0"
        assert shape == ([47, 256] if "packed" in name else [20, 4, 256])


def test_a_recurrent_layer_saves_what_cudnn_reserves(over_cudnn):
    answer = over_cudnn(
        """
        layer = torch.nn.LSTM(64, 128).cuda()
        sizes = []
        for length in (10, 20):
            x = torch.empty(length, 4, 64, device="cuda")
            before = torch.cuda.memory_stats()["requested_bytes.all.current"]
            y = layer(x)[0]
            after = torch.cuda.memory_stats()["requested_bytes.all.current"]
            sizes.append(after - before - 4 * y.numel())
            del y
        answer = sizes
        """
    )
    gates = 4 * 128 * 4 * 4
    assert answer[1] - answer[0] >= 10 * gates


def test_batch_norm_and_ctc_run_by_cudnn(over_cudnn):
    over_cudnn(
        """
        norm = torch.nn.BatchNorm2d(64).cuda()
        x = torch.empty(8, 64, 32, 32, device="cuda", requires_grad=True)
        y, *_ = torch.ops.aten.cudnn_batch_norm(
            x, norm.weight, norm.bias, norm.running_mean, norm.running_var, True, 0.1, 1e-5
        )
        assert y.grad_fn.name() == "CudnnBatchNormBackward0"
        y.sum().backward()
        last = torch.channels_last
        image = torch.empty(8, 64, 32, 32, device="cuda", dtype=torch.half).to(memory_format=last)
        half = norm(image)
        assert half.grad_fn.name() in ("CudnnBatchNormBackward0", "NativeBatchNormBackward0")
        half.sum().backward()
        scores = torch.empty(50, 4, 20, device="cuda", requires_grad=True)
        targets = torch.ones(40, dtype=torch.int32), (50,) * 4, (10,) * 4
        loss = torch.nn.functional.ctc_loss(scores.log_softmax(2), *targets)
        assert torch._use_cudnn_ctc_loss(scores, *targets, 0)
        loss.backward()
        assert loading.is_used()
        """
    )


def test_trials_of_engines_end_with_the_first(over_cudnn):
    over_cudnn(
        """
        from torch.nn.functional import conv2d
        x, w = torch.empty(8, 64, 28, 28, device="cuda"), torch.empty(64, 64, 3, 3, device="cuda")
        scratch(lambda: conv2d(x, w, padding=1))
        torch.backends.cudnn.benchmark = True
        assert scratch(lambda: conv2d(x, w, padding=1)) >= 0
        assert any("benchmark" in sentence for sentence in loading.assumptions())
        """
    )


@pytest.mark.nightly
def test_the_library_may_be_loaded_before_a_fork(over_cudnn):
    process = CudnnProcess(loaded=True)
    code = """
    x, w = torch.empty(8, 64, 28, 28, device="cuda"), torch.empty(64, 64, 3, 3, device="cuda")
    answer = scratch(lambda: torch.nn.functional.conv2d(x, w, padding=1))
    """
    try:
        sizes = {name: process.run(code, name) for name in ("7.5", "8.0")}
    finally:
        process.close()
    assert sizes == {name: over_cudnn(code, name) for name in sizes}


def test_a_library_that_cannot_be_loaded_ends_in_pytorchs_error(over_cudnn, tmp_path):
    answer = over_cudnn(
        """
        x, w = torch.empty(8, 64, 28, 28, device="cuda"), torch.empty(64, 64, 3, 3, device="cuda")
        try:
            torch.nn.functional.conv2d(x, w)
        except RuntimeError as error:
            answer = [str(error), failure()]
        """,
        MEMCALC_CUDNN=str(tmp_path),
    )
    assert "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED" in answer[0]
    assert "libcudnn.so.9" in answer[1]


def test_without_a_library_the_program_runs_with_cudnn_off(over_cudnn):
    over_cudnn(
        """
        from memcalc.engine.cudnn.library import Missing
        missing = Missing(reason="of a test", reported=(9, 1, 0))
        os_environ = __import__("os").environ
        os_environ.update(loading.environment(missing))
        loading.switch_off()
        torch.backends.cudnn.enabled = True
        layer = torch.nn.Conv2d(3, 8, 3).cuda()
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            y = layer(torch.empty(2, 3, 32, 32, device="cuda"))
        y.sum().backward()
        assert [torch.backends.cudnn.enabled, loading.is_used(), failure()] == [False, False, ""]
        assert "of a test" in missing.uncounted[0]
        """
    )


@pytest.mark.nightly
def test_a_program_ends_normally():
    cudnn_process.cudnn()
    root, cuda = cudnn_process.cuda_torch()
    found = library.find([root.parent], (9, 0))
    over = {**stub.environment(stub.prepare(root, cuda)), **loading.environment(found)}
    # A program that ends just behind a backward pass may abort by itself, so this one waits.
    code = """
import time, torch
layer = torch.nn.Conv2d(64, 64, 3).cuda()
layer(torch.empty(8, 64, 28, 28, device="cuda")).sum().backward()
time.sleep(0.3)
print(torch.cuda.max_memory_allocated())
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **settings("9.0"), **over},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0


KEYS = """
    import threading
    library, key = ctypes.CDLL(None), ctypes.c_uint()
    for _ in range(200):
        assert not library.pthread_key_create(ctypes.byref(key), None)
        library.pthread_setspecific(key, ctypes.c_void_p(1))
    layer = torch.nn.Conv2d(8, 8, 3).cuda()
    rows = torch.ones(2, 8, 16, 16, device="cuda")
    for _ in range(20):
        thread = threading.Thread(target=layer, args=(rows,))
        thread.start()
        thread.join()
    layer(rows).sum().backward()
    answer = layer.weight.grad.shape == layer.weight.shape
"""


def test_cudnn_and_the_program_keep_their_own_values_of_threads(over_cudnn):
    assert over_cudnn(KEYS, capability="8.0")


def test_the_shim_has_every_function_of_the_installed_cudnn():
    names = cudnn_process.declared()
    shim = ctypes.CDLL(str(stub.libraries() / build.SHIM))
    assert len(names) > 200
    assert [name for name in names if not hasattr(shim, name)] == []
