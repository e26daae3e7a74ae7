"""One process that puts work on several GPUs: each has an allocator, streams and handles.

Figures are those of PyTorch 2.13's own CUDA code over the stand-in driver.
"""

import json
import os
import shutil
import threading

import pytest
from memcalc.script.driver.run import run as run_over_driver
from memcalc.script.mode import Mode
from memcalc.script.visible import usable
from msgspec.structs import replace

from memcalc.files.artifact import decode, encode
from memcalc.records.prediction import FitVerdict, Prediction
from memcalc.report import json as as_json
from memcalc.report import predictions
from memcalc.report.blocks import terminal
from memcalc.script.simulate import plan_of, simulate
from memcalc.trace.handles import Handles

CUDA = os.environ.get("MEMCALC_CUDA_PYTHON")

LEVELS = """
import torch
from torch import nn
def levels():
    gpus = range(torch.cuda.device_count())
    print("levels", *[torch.cuda.memory_allocated(i) for i in gpus],
          *[torch.cuda.max_memory_reserved(i) for i in gpus], sep=",")
"""

DATA_PARALLEL = (
    LEVELS
    + """
model = nn.DataParallel(nn.Sequential(
    nn.Linear(512, 2048), nn.ReLU(), nn.BatchNorm1d(2048), nn.Linear(2048, 512)).cuda())
optimizer = torch.optim.Adam(model.parameters())
for _ in range(2):
    batch = torch.randn(256, 512).cuda()
    out = model(batch)
    levels()
    out = out.square().mean()
    out.backward()
    levels()
    optimizer.step()
    optimizer.zero_grad()
    levels()
"""
)

CHAIN = (
    LEVELS
    + """
layers = nn.ModuleList(
    nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(i) for i in range(4))
average = [p.detach().clone().to("cuda:3") for p in layers.parameters()]
optimizer, scaler = torch.optim.AdamW(layers.parameters(), foreach=True), torch.amp.GradScaler()
for _ in range(2):
    x = torch.randn(128, 1024, device="cuda:0")
    with torch.autocast("cuda", torch.float16):
        for i, layer in enumerate(layers):
            x = layer(x.to(i))
        loss = x.float().square().mean().to("cuda:0")
    levels()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(layers.parameters(), 1.0)
    levels()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    with torch.no_grad():
        for mean, own in zip(average, layers.parameters()):
            mean.mul_(0.99).add_(own.to(mean.device), alpha=0.01)
    levels()
"""
)

RECORDED = {
    "data parallel": (
        DATA_PARALLEL,
        "2xt4",
        """
        20113920,19326976,25165824,25165824
        25891840,8519680,69206016,46137344
        34307072,8519680,69206016,46137344
        45464064,27846656,69206016,46137344
        51241984,17039360,90177536,46137344
        42826752,17039360,90177536,46137344
        """,
    ),
    "one layer after another": (
        CHAIN,
        "4xt4",
        """
        52843008,61231104,61231104,196317184,75497472,75497472,75497472,213909504
        84191232,84189696,84189696,218751488,109051904,113246208,113246208,253755392
        117765632,117764096,117764096,252325888,192937984,197132288,197132288,354418688
        128513536,136900608,136900608,271986688,192937984,197132288,197132288,354418688
        151341056,151339520,151339520,285901312,192937984,197132288,197132288,354418688
        117765632,117764096,117764096,252325888,192937984,197132288,197132288,354418688
        """,
    ),
}

ANSWERS = """
import torch
from pynvml import *
def fails(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
one, other = torch.ones(4, 4, device="cuda:0"), torch.zeros(4, 4, device="cuda:1")
other.copy_(one)
other[:2] = one[:2]
assert "two devices" in fails(lambda: one + other)
assert "two devices" in fails(lambda: torch.cat([one, other]))
assert "on the same device as the indexed" in fails(lambda: other[one[0].long()])
assert (other + torch.tensor(2.0)).device == torch.device("cuda:1")
assert [torch.tensor([], device=f"cuda:{i}").device.index for i in (0, 1, 0)] == [0, 1, 0]
leaf = torch.ones(3, device="cuda:1", requires_grad=True)
(leaf.to("cuda:0") * 2).sum().backward()
assert leaf.grad.device.index == 1
assert torch.cuda.current_device() == 0
with torch.cuda.device(1):
    assert torch.empty(2, device="cuda").device.index == torch.cuda.current_device() == 1
stream = torch.cuda.Stream(device=1)
with torch.cuda.stream(stream):
    assert torch.cuda.current_device() == torch.empty(2, device="cuda").device.index == 1
    assert torch.cuda.current_stream(0) == torch.cuda.default_stream(0)
    assert torch.cuda.current_stream() == stream
assert torch.cuda.current_stream(1) == torch.cuda.default_stream(1) != torch.cuda.default_stream(0)
drawn = torch.randn(3, device="cuda:1", generator=torch.Generator("cuda:1"))
assert drawn.device.index == 1 and len(torch.cuda.default_generators) == 2
assert "has 2 GPUs" in fails(lambda: torch.zeros(1, device="cuda:2"))
assert "has 2 GPUs" in fails(lambda: torch.cuda.set_device(2))
assert fails(lambda: torch.cuda.memory_allocated(2))
large = torch.empty(10 << 30, dtype=torch.uint8, device="cuda:1")
assert torch.cuda.mem_get_info(1)[0] < torch.cuda.mem_get_info(0)[0] - (10 << 30)
assert "GPU 1 has a total capacity" in fails(
    lambda: torch.empty(6 << 30, dtype=torch.uint8, device="cuda:1"))
first = torch.empty(12 << 30, dtype=torch.uint8, device="cuda:0")
torch.cuda.set_per_process_memory_fraction(0.5, 1)
assert [torch.cuda.get_per_process_memory_fraction(i) for i in (0, 1)] == [1.0, 0.5]
torch.cuda.set_per_process_memory_fraction(1.0, 1)
torch.cuda.reset_peak_memory_stats(1)
assert {segment["device"] for segment in torch.cuda.memory_snapshot()} == {0, 1}
nvmlInit()
assert nvmlDeviceGetCount() == 2
cards = [nvmlDeviceGetHandleByIndex(i) for i in range(2)]
assert [nvmlDeviceGetIndex(card) for card in cards] == [0, 1]
assert nvmlDeviceGetUUID(cards[0]) != nvmlDeviceGetUUID(cards[1])
used = [nvmlDeviceGetMemoryInfo(card).used for card in cards]
assert used[0] > used[1] > 10 << 30 and used[0] < 13 << 30
assert [torch.cuda.device_memory_used(i) for i in range(2)] == used
torch.cuda.set_device(1)
assert torch.zeros(1).cuda().device.index == 1
"""


def levels(text):
    return [line.split(",", 1)[1] for line in text.splitlines() if line.startswith("levels,")]


@pytest.mark.parametrize("name", RECORDED)
def test_each_gpu_holds_what_it_holds_by_pytorchs_own_code(name, run, capfd):
    script, gpu, recorded = RECORDED[name]
    found = run(script, gpu=gpu, steps=0)
    assert found.ending.code == 0
    assert levels(capfd.readouterr().err) == recorded.split()
    answer = found.traced.prediction
    *_, last = recorded.split()
    reserved = list(map(int, last.split(",")))[len(answer.gpus) :]
    assert [one.peak.reserved for one in answer.gpus] == reserved
    assert answer.device == reserved.index(max(reserved))
    assert answer.peak == answer.gpus[answer.device].peak
    assert sum(answer.components.values()) == answer.peak.requested


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
@pytest.mark.parametrize("name", RECORDED)
def test_the_driver_counts_each_gpu(name, tmp_path, monkeypatch, capfd):
    script, gpu, recorded = RECORDED[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    (tmp_path / "train.py").write_text(script)
    plan = plan_of(["python", "train.py"], steps=0, gpu=gpu, torch="2.13")
    over = run_over_driver(plan, CUDA)
    assert levels(capfd.readouterr().err) == recorded.split()
    found = simulate(plan).traced.prediction
    for one, other in zip(found.gpus, over.gpus, strict=True):
        assert (one.peak.allocated, one.peak.reserved) == (other.allocated, other.reserved)
    assert found.peak.reserved == over.peaks.reserved


def test_a_script_finds_every_gpu_with_what_it_holds(run):
    found = run(ANSWERS, gpu="2xt4")
    assert found.ending.code == 0
    answer = found.traced.prediction
    assert answer.device == 0
    assert [one.fit.verdict for one in answer.gpus] == [FitVerdict.FITS] * 2


def test_the_answer_shows_each_gpu_and_can_be_read_back(run):
    answer = run(CHAIN, gpu="4xt4").traced.prediction
    assert decode(Prediction, encode(answer)) == answer
    shown = terminal(predictions.blocks([answer], verbose=False), width=100)
    assert "of 4 GPUs cuda:3 is shown, the fullest" in shown
    assert all(f"cuda:{index}" in shown for index in range(4))
    found = json.loads(as_json.render([answer]))
    assert found["device"] == 3
    assert [one["index"] for one in found["gpus"]] == [0, 1, 2, 3]
    assert "of 4 GPUs" in terminal(predictions.blocks([answer]), width=100)
    alone = replace(answer, gpus=())
    assert "is shown, the fullest" not in terminal(predictions.blocks([alone]), width=100)


def test_data_parallel_counts_nccl_between_its_gpus(run):
    said = run(DATA_PARALLEL, gpu="2xt4").traced.prediction
    assert "NCCL" in said.context.source
    said = run(CHAIN, gpu="4xt4").traced.prediction
    assert "NCCL" not in said.context.source


def test_of_several_gpus_a_script_that_uses_one_is_told_what_to_type(run):
    text = "import torch; torch.ones(torch.cuda.device_count(), device='cuda')"
    answer = run(text, gpu="2xh100-sxm").traced.prediction
    assert answer.peak.requested == 8
    assert not answer.gpus
    said = " ".join(answer.assumptions)
    assert "uses one: put torchrun --nproc-per-node 2 before it" in said


def test_a_process_has_what_a_launcher_leaves_it(tmp_path, parent, monkeypatch):
    """Two processes with two GPUs each, of which the first has cuda:0 and cuda:1."""
    monkeypatch.chdir(tmp_path)
    text = "import os, torch\nfirst = 2 * int(os.environ['LOCAL_RANK'])\n"
    text += "torch.ones(4, device=first) + torch.ones(4, device=first + 1).to(first)\n"
    (tmp_path / "train.py").write_text(text)
    command = ["torchrun", "--nproc-per-node", "2", "train.py"]
    found = simulate(plan_of(command, gpu="4xt4"), parent)
    assert found.ending.code == 0
    assert [one.index for one in found.traced.prediction.gpus] == [0, 1]
    assert simulate(plan_of(command, gpu="2xt4"), parent).ending.code == 1
    assert [usable(4, None), usable(4, 2), usable(2, 2), usable(1, 2)] == [4, 4, 1, 1]


def test_a_thread_that_ended_leaves_its_handle_to_the_next():
    handles, found = Handles(), []

    def ask():
        found.append((handles.of(0), handles.of(1)))

    for _ in range(2):
        thread = threading.Thread(target=ask)
        thread.start()
        thread.join()
    assert found[0] == found[1]
    assert handles.of(0) == found[0][0]
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found[2][0] != handles.of(0)


def test_a_kernel_of_one_thread_changes_nothing_for_another():
    mode = Mode(allow_non_fake_inputs=True)
    mode.share()
    mode.in_kernel_invocation = True
    seen = []
    thread = threading.Thread(target=lambda: seen.append(mode.in_kernel_invocation))
    thread.start()
    thread.join()
    assert seen == [False]
    assert mode.in_kernel_invocation
