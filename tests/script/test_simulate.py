"""A script on a simulated GPU sees, and costs, what it would on a real one."""

import pytest

from memcalc.errors import EstimateError
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import Component


def test_a_full_gpu_raises_what_pytorch_raises(run):
    found = run(
        """
        import torch
        kept = []
        try:
            while True:
                kept.append(torch.empty(1 << 30, device="cuda"))
        except torch.OutOfMemoryError as error:
            assert "Tried to allocate 4.00 GiB" in str(error), error
            full = len(kept)
        assert full == 3, full
        free, total = torch.cuda.mem_get_info()
        assert free < 4 << 30 and torch.cuda.memory_allocated() == 3 << 32
        kept.clear()
        torch.empty(3 << 30, dtype=torch.uint8, device="cuda")
        """,
        gpu="t4",
    )
    assert found.ending.code == 0
    assert found.traced.prediction.peak.allocated == 3 << 32


def test_a_script_that_fails_passes_its_exit_code_on(run, capfd):
    found = run("import torch\ntorch.zeros(9, device='cuda')\nraise ValueError('no data')")
    assert found.ending.code == 1
    assert found.traced.prediction.peak.allocated == 512
    shown = capfd.readouterr().err
    assert shown.startswith('Traceback (most recent call last):\n  File "train.py", line 3')
    assert shown.endswith("ValueError: no data\n")
    assert run("import sys; sys.exit(7)").ending.code == 7
    assert run("import os; os._exit(5)").ending.code == 5


def test_what_a_failed_script_would_have_fitted_is_not_known(run):
    failed = "import torch\ntorch.zeros(9, device='cuda')\nraise SystemExit(3)"
    prediction = run(failed, gpu="t4").traced.prediction
    assert prediction.fit is None
    assert "exit code 3" in prediction.unknown["fit"]
    assert "exit code 3" in prediction.assumptions[0]
    full = run("import torch\ntorch.zeros(1 << 33, device='cuda')", gpu="t4")
    assert full.ending.out_of_memory
    assert full.ending.code == 1
    assert full.traced is None or full.traced.prediction.fit.verdict is FitVerdict.DOES_NOT_FIT


def test_a_script_that_crashes_is_named_in_one_sentence(run):
    with pytest.raises(EstimateError, match="was ended by SIGSEGV"):
        run("import ctypes; ctypes.string_at(0)")


@pytest.mark.nightly
def test_quantized_weights_are_told_from_what_turns_them_back(run):
    found = run(
        """
        import torch
        import bitsandbytes as bnb
        base = bnb.nn.Linear4bit(1024, 2048, bias=False, compress_statistics=False)
        head = torch.nn.Linear(2048, 8).cuda()
        model = torch.nn.Sequential(base.cuda(), head)
        optimizer = torch.optim.SGD(head.parameters())
        for _ in range(2):
            model(torch.randn(8, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """,
        steps=0,
    )
    components = found.traced.prediction.components
    assert components[Component.QUANTIZED_WEIGHTS] == 1024 * 2048 // 2
    # A number for each block of 64, and the table of 16 codes, in fp32.
    assert components[Component.QUANTIZATION_CONSTANTS] == 4 * (1024 * 2048 // 64) + 4 * 16
    assert components[Component.WEIGHTS] == 4 * (2048 * 8 + 8)


PROGRAMS = {
    # A program that catches it frees what it held, and tries again with less.
    "what did not fit is let go of where the error is caught": """
        import torch
        torch.set_grad_enabled(False)
        try:
            torch.empty(1 << 30, device="cuda").repeat(9).sum()
        except torch.OutOfMemoryError:
            assert torch.cuda.memory_allocated() == 0
    """,
    # A router under checkpointing, a function's own backward; both read what the program put.
    "code that runs inside backward decides by the same values": """
        import torch
        from torch.utils.checkpoint import checkpoint

        class Adjoint(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x, times):
                ctx.save_for_backward(times)
                return x * 2
            @staticmethod
            def backward(ctx, gradient):
                back = ctx.saved_tensors[0].flip(0)
                assert (back[1:] < back[:-1]).all()
                return gradient * 2, None

        router, expert = torch.nn.Linear(64, 4).cuda(), torch.nn.Linear(64, 64).cuda()

        def routed(x):
            best = router(x).topk(2, -1).indices
            for number in range(4):
                rows, _ = torch.where(best == number)
                if rows.numel():
                    x = x.index_add(0, rows, expert(x[rows]))
            return x

        for again in (False, True):
            x = torch.randn(512, 64, device="cuda", requires_grad=True)
            y = Adjoint.apply(x, torch.linspace(0, 1, 5, device="cuda"))
            checkpoint(routed, y, use_reentrant=again).sum().backward()
    """,
    "batches are known after they are laid anew and masks are drawn": """
        import torch
        batch = torch.zeros(32, 2, 300)
        batch[:, 1] = 1
        padded = torch.nn.functional.pad(batch.cuda(), (0, 12))
        windows = padded.unfold(-1, 60, 1).permute(0, 2, 3, 1).flatten(0, 1)[:, :48, 1]
        assert (windows[:2000].sum(1) >= 1).all()
        assert torch.ones(5000, device="cuda")[4999].item() == 1
        chosen = torch.rand(8, 512, device="cuda") < 0.15
        assert 400 < torch.randn(8, 512, 64, device="cuda")[chosen].shape[0] < 800
    """,
    "operators whose kernels are in python find them": """
        import torch
        from torch._prims.rng_prims import run_and_save_rng_state
        x = torch.ones(4, device="cuda")
        state, drawn = run_and_save_rng_state(torch.ops.aten.rand_like.default, x)
        assert drawn.is_cuda
    """,
    "a router sends as many tokens to each expert": """
        import torch
        router = torch.nn.Linear(64, 8).cuda()
        scores = router(torch.randn(400, 64, device="cuda")).softmax(-1)
        chosen = scores.topk(2)[1], scores.argmax(-1), scores.max(1)[1], scores.topk(2, 0)[1]
        for one in chosen:
            assert one.flatten().unique(return_counts=True)[1].unique().numel() == 1
        # Of a vocabulary the first is the padding.
        assert scores.multinomial(1)[0] == scores[0].argmax() == 4
        assert (torch.eye(400, 8).cuda().topk(1)[1][:8, 0] == torch.arange(8).cuda()).all()
    """,
    "no infinity or nan comes of numbers that are not known": """
        import torch
        norm = torch.linalg.norm(torch.randn(600, device="cuda"))
        losses = (norm / norm, norm.log(), 1 / norm, norm**-0.5, norm.pow(2).reciprocal())
        assert torch.stack(losses).isfinite().all()
        assert torch.tensor(0.0).cuda().log() == -torch.inf
    """,
    "whole numbers are known that an operator puts into a tensor it is given": """
        import torch
        lengths, ends = torch.tensor([5, 3, 7]).cuda(), torch.empty(4, dtype=torch.long).cuda()
        ends[:1].zero_()
        torch.cumsum(lengths, 0, out=ends[1:])
        assert ends.tolist() == [0, 5, 8, 15]
    """,
    "tensors on the gpu are compared by what is known of them": """
        import torch
        ones, two = torch.ones(3, device="cuda"), torch.tensor([1.0, 1.0, 2.0], device="cuda")
        assert torch.equal(ones, torch.ones(3, device="cuda"))
        assert not torch.equal(ones, two) and not torch.equal(ones, two[:2])
        assert torch.equal(ones.new_empty(0), ones.new_empty(0))
    """,
}
NIGHTLY = {
    "places that are not zero are counted where the script put the numbers": """
        import torch
        labels = torch.tensor([1, -100, 2, -100, 3]).cuda()
        assert (labels != -100).nonzero().shape == (3, 1)
        assert labels[labels != -100].shape == (3,)
        assert (labels != -100).sum().item() == 3
    """,
    "lazy modules and pinned batches run": """
        import torch
        model = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.ReLU(), torch.nn.LazyLinear(2))
        model(torch.zeros(1, 16))
        model.cuda()
        batch = torch.randn(4, 16, pin_memory=True).to("cuda", non_blocking=True)
        assert model(batch).shape == (4, 2)
        later = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.LazyBatchNorm1d()).cuda()
        assert later(batch).shape == (4, 8)
        optimizer = torch.optim.Adam(later.parameters())
        later(batch).sum().backward()
        optimizer.step()
        assert {p.device.type for p in (*later.parameters(), *later.buffers())} == {"cuda"}
    """,
    "a frozen convolution passes its gradient on": """
        import torch
        frozen = torch.nn.Conv2d(8, 8, 3, padding=1).cuda().requires_grad_(False)
        head = torch.nn.Conv2d(3, 8, 1).cuda()
        turned = head(torch.randn(2, 3, 16, 20, device="cuda")).transpose(2, 3)
        frozen(turned).sum().backward()
        assert head.weight.grad.shape == (8, 3, 1, 1)
    """,
    "whole batches of the host go through data parallel": """
        import torch
        model = torch.nn.DataParallel(torch.nn.Linear(64, 64)).cuda()
        stream, event = torch.Stream("cuda"), torch.Event("cuda")
        with stream:
            event.record()
        assert model(torch.randn(8, 64)).shape == (8, 64)
    """,
    "tensors that hold others have no memory of their own": """
        import torch
        from torch.testing._internal.two_tensor import TwoTensor
        parts = [torch.empty(256, 256, device="cuda") for _ in range(2)]
        both = torch.nn.Parameter(TwoTensor(*parts))
        twice = both + both
        assert torch.cuda.memory_allocated() == 4 * 256 * 256 * 4
    """,
    "metadata that changes in place counts": """
        import torch
        x = torch.ones(64, 32, device="cuda")
        assert (x * 2).shape == (64, 32)
        x.t_()
        assert (x * 2).shape == (32, 64)
        x.data = torch.ones(3, device="cuda", dtype=torch.half)
        assert (x * 2).shape == (3,) and (x * 2).dtype is torch.half
        y = torch.empty(0, device="cuda")
        torch.add(torch.ones(5, device="cuda"), 1, out=y)
        assert (y * 2).shape == (5,)
        y.resize_(7)
        assert (y * 2).shape == (7,)
        y.set_(torch.ones(2, 2, device="cuda"))
        assert (y * 2).shape == (2, 2)
    """,
}


@pytest.mark.parametrize(
    "program", [*PROGRAMS, *(pytest.param(one, marks=pytest.mark.nightly) for one in NIGHTLY)]
)
def test_a_program_runs_to_its_end(run, program):
    assert run({**PROGRAMS, **NIGHTLY}[program], steps=0).ending.code == 0


@pytest.mark.parametrize(
    "seen",
    [
        "3,4",
        pytest.param("5", marks=pytest.mark.nightly),
        pytest.param("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", marks=pytest.mark.nightly),
    ],
)
def test_a_script_that_names_gpus_of_another_machine_uses_the_simulated_one(run, seen):
    found = run(
        f"""
        import os
        os.environ["CUDA_VISIBLE_DEVICES"] = "{seen}"
        import torch
        assert torch.cuda.is_available() and torch.cuda.device_count() == 1
        torch.zeros(1 << 20, device="cuda")
        """
    )
    assert not found.ending.code
    assert found.traced.prediction.peak.allocated == 4 << 20


def test_the_last_run_is_kept_and_explains_itself(memcalc, tmp_path):
    (tmp_path / "train.py").write_text(
        "import torch\nmodel = torch.nn.Linear(64, 64).cuda()\n"
        "model(torch.ones(8, 64, device='cuda')).sum().backward()\n"
    )
    cache = {"MEMCALC_CACHE": str(tmp_path / "cache")}
    done = memcalc("explain", "last", **cache)
    assert done.returncode == 2
    assert "type memcalc simulate -- python train.py" in done.stderr
    done = memcalc("simulate", "--gpu", "t4", "--", "python", "train.py", **cache)
    assert done.stdout.endswith("memcalc explain last\n")
    assert "at train.py:2" in memcalc("explain", "last", **cache).stdout
    done = memcalc("simulate", "--gpu", "t4", "-o", "run.json", "--", "python", "train.py", **cache)
    assert "fits on T4" in done.stderr
