"""The stand-in driver: what it is built from, and what is said where it cannot be.

``MEMCALC_CUDA_PYTHON`` names a Python with PyTorch's CUDA build; without it nothing is run over it.
"""

import ctypes
import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from memcalc.errors import EstimateError
from memcalc.script.driver import build, elf
from memcalc.script.driver.run import run
from memcalc.script.simulate import plan_of, simulate
from tests.script.test_decisions import TRAINS
from tests.script.test_given_back import CONFS, GIVES_BACK
from tests.script.test_graphs import CAPTURED
from tests.script.test_inference_mode import COMPOSED
from tests.script.test_native_convolution import POINTS
from tests.script.test_older_torch import FILE as RECORDED
from tests.script.test_older_torch import phases_of
from tests.script.test_outer_products import APART
from tests.script.test_places_of_views import ADDED, WRITES
from tests.script.test_processes import SCRIPT, WRAPS

CUDA = os.environ.get("MEMCALC_CUDA_PYTHON")
OLDER = os.environ.get("MEMCALC_OLDER_CUDA_PYTHON")
"""Of an environment with an older release, such as 2.0.1, and its compiler's headers."""
SCRIPTS = Path(__file__).parents[2] / "benchmarks" / "scripts"


def test_what_a_library_needs_is_read_from_it():
    found = elf.needs(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
    assert {"libc10.so", "libc.so.6", "libstdc++.so.6"} <= found.libraries
    by_name = {symbol.name: symbol for symbol in found.symbols}
    assert by_name["memcpy"].library == "libc.so.6"
    assert by_name["memcpy"].version.startswith("GLIBC_2.")
    assert any(s.name.startswith("_ZN3c10") and not s.version for s in found.symbols)


def test_no_library_is_told_apart(tmp_path):
    (tmp_path / "text").write_text("text " * 99)
    with pytest.raises(ValueError, match="no 64-bit library"):
        elf.needs(tmp_path / "text")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this build has CUDA")
def test_a_build_without_cuda_is_told_what_to_install():
    with pytest.raises(EstimateError, match=r"without CUDA.*pip install torch.*--python"):
        build.installed(sys.executable)
    with pytest.raises(EstimateError, match="does not run"):
        build.installed("/nothing/like/it")
    with pytest.raises(EstimateError, match="does not answer as a Python does"):
        build.installed("/bin/true")


def test_without_a_compiler_or_headers_it_is_told_what_to_install(monkeypatch, tmp_path):
    found = build.Installed(root=str(tmp_path / "torch"), torch="2.13.0", cuda="3.0")
    with pytest.raises(EstimateError, match="headers of CUDA 3"):
        build.libraries(found)
    monkeypatch.setenv("CC", "nothing-like-it")
    with pytest.raises(EstimateError, match="needs a C compiler"):
        build.libraries(found)


def test_headers_that_lack_the_compilers_are_completed_by_another_place(tmp_path):
    """As pip installs them: the runtime's wheel without the compiler's, beside Triton's."""
    found = build.Installed(root=str(tmp_path / "torch"), torch="2.15.0", cuda="30.1")
    wheel, triton = tmp_path / "nvidia/cu30/include", tmp_path / "triton/backends/nvidia/include"
    for place in (wheel, triton):
        (place / "crt").mkdir(parents=True)
        for name in ("cuda.h", "driver_types.h"):
            (place / name).touch()
        (place / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  30010\n")
    with pytest.raises(EstimateError, match="nvidia-cuda-crt"):
        build._headers(found)
    (triton / "crt/host_defines.h").touch()
    assert build._headers(found) == [wheel, triton]
    (wheel / "crt/host_defines.h").touch()
    assert build._headers(found) == [wheel]


def test_the_compilers_wheel_of_earlier_cuda_has_its_headers(tmp_path):
    found = build.Installed(root=str(tmp_path / "torch"), torch="2.0.1", cuda="11.7")
    wheel, compiler = (tmp_path / f"nvidia/cuda_{name}/include" for name in ("runtime", "nvcc"))
    wheel.mkdir(parents=True)
    for name in ("cuda.h", "driver_types.h"):
        (wheel / name).touch()
    (wheel / "cuda_runtime_api.h").write_text("#define CUDART_VERSION  11070\n")
    with pytest.raises(EstimateError, match="nvidia-cuda-runtime-cu11 nvidia-cuda-nvcc-cu11"):
        build._headers(found)
    (compiler / "crt").mkdir(parents=True)
    (compiler / "crt/host_defines.h").touch()
    assert build._headers(found) == [wheel, compiler]


def test_libraries_that_a_wheel_brings_along_are_known_by_their_names():
    assert build._OURS.match("libgomp-a34b3233.so.1")
    assert build._BUNDLED.sub("", "libcusparseLt-f80c68d1") == "libcusparseLt"


@pytest.mark.skipif(OLDER is None, reason="MEMCALC_OLDER_CUDA_PYTHON names no CUDA build")
@pytest.mark.parametrize("name", ["attention", "operators", "optimizers", "vit"])
def test_an_older_release_takes_what_was_recorded(name, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MEMCALC_READS", "zeros")
    script = SCRIPTS.parent / "older" / f"{name}.py"
    over = run(plan_of(["python", str(script)], steps=0, gpu=RECORDED["gpu"]), OLDER)
    assert over.code == 0
    recorded = RECORDED["recorded"][over.torch.split("+")[0]][name]
    assert phases_of("".join(capfd.readouterr())) == recorded


@pytest.mark.skipif(shutil.which("cc") is None, reason="there is no C compiler")
def test_the_driver_counts_its_memory_and_maps_none(tmp_path):
    source = build.SOURCES / "libcuda.c"
    library = tmp_path / "libcuda.so"
    command = ["cc", "-shared", "-fPIC", "-w", "-o", str(library), str(source)]
    subprocess.run(command, check=True)
    driver = ctypes.CDLL(str(library))
    at, left, whole = ctypes.c_uint64(), ctypes.c_size_t(), ctypes.c_size_t()
    assert driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(3 << 20)) == 0
    assert driver.cuMemGetInfo_v2(ctypes.byref(left), ctypes.byref(whole)) == 0
    assert whole.value - left.value == 4 << 20
    assert driver.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(80 << 30)) == 2


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
@pytest.mark.parametrize("name", ["sam_and_lion", "side_stream", "resnet_sgd", "adam_8bit"])
def test_both_back_ends_give_one_answer(name, monkeypatch, tmp_path):
    monkeypatch.setenv("MEMCALC_READS", "zeros")
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    monkeypatch.chdir(tmp_path)
    command = ["python", str(SCRIPTS / f"{name}.py")]
    plan = plan_of(command, steps=2, gpu="H100 SXM", torch="2.13", cudnn_attention=False)
    over = run(plan, CUDA)
    found = simulate(plan).traced.prediction.phases
    assert over.stopped
    assert max(phase.allocated for phase in found) == over.peaks.allocated
    assert max(phase.reserved for phase in found) == over.peaks.reserved


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
def test_segments_that_a_script_makes_expandable_are_taken_alike(monkeypatch, tmp_path):
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    monkeypatch.chdir(tmp_path)
    conf = "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'expandable_segments:True'\n"
    (tmp_path / "train.py").write_text(conf + (SCRIPTS / "nano_gpt.py").read_text())
    plan = plan_of(["python", "train.py"], steps=2, gpu="H100 SXM", torch="2.13")
    over, found = run(plan, CUDA), simulate(plan).traced.prediction.peak
    assert (found.allocated, found.reserved) == (over.peaks.allocated, over.peaks.reserved)


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
@pytest.mark.parametrize("wrap", WRAPS)
def test_one_of_several_processes_takes_the_same_over_both_back_ends(wrap, monkeypatch, tmp_path):
    monkeypatch.setenv("MEMCALC_NO_CUDNN", "1")
    monkeypatch.chdir(tmp_path)
    text = textwrap.dedent(SCRIPT).replace("WRAP", WRAPS[wrap])
    (tmp_path / "train.py").write_text(text)
    command = ["torchrun", "--nproc-per-node", "8", "train.py"]
    plan = plan_of(command, steps=3, gpu="H100 SXM", torch="2.13", cudnn_attention=False)
    over = run(plan, CUDA)
    found = simulate(plan).traced.prediction
    assert (over.code, over.steps) == (0, 3)
    peaks = found.peak.requested, found.peak.allocated, found.peak.reserved
    assert peaks == (over.peaks.requested, over.peaks.allocated, over.peaks.reserved)


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
def test_a_graph_of_a_whole_step_is_captured_over_the_driver(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(CAPTURED)
    plan = plan_of(["python", "train.py"], steps=0, gpu="a100-40gb", torch="2.13")
    over, found = run(plan, CUDA), simulate(plan).traced.prediction.peak
    assert over.code == 0
    assert (found.allocated, found.reserved) == (over.peaks.allocated, over.peaks.reserved)


EQUAL = """
import torch
weight = torch.randn(8, 8, device="cuda")
assert torch.equal(weight, weight.clone())
assert torch.equal(torch.arange(4, device="cuda"), torch.arange(4).cuda())
assert not torch.equal(torch.arange(4, device="cuda"), torch.ones(4, device="cuda").long())
assert not torch.equal(weight, weight[:4])
"""


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
def test_what_is_the_same_is_equal_over_the_driver(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(EQUAL)
    plan = plan_of(["python", "train.py"], steps=0, gpu="a100-40gb", torch="2.13")
    assert run(plan, CUDA).code == simulate(plan).ending.code == 0


SPAWNS = """
import os
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.nn.parallel import DistributedDataParallel

def work(rank, world):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    dist.init_process_group("nccl", rank=rank, world_size=world)
    model = DistributedDataParallel(torch.nn.Linear(1000, 1000).cuda(rank), device_ids=[rank])
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(64, 1000, device=rank)).sum().backward()
        optimizer.step()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, args=({world},), nprocs={world})
"""


@pytest.mark.nightly
@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
@pytest.mark.parametrize("world", [1, 4])
def test_the_first_of_spawned_processes_takes_what_it_takes_over_the_driver(
    world, monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SPAWNS.replace("{world}", str(world)))
    plan = plan_of(["python", "train.py"], gpu="a100-40gb")
    over = run(plan, CUDA)
    found = simulate(plan).traced.prediction
    assert (over.code, over.steps) == (0, 3)
    peaks = found.peak.requested, found.peak.allocated, found.peak.reserved
    assert peaks == (over.peaks.requested, over.peaks.allocated, over.peaks.reserved)
    assert any(f"of {world} spawned processes" in said for said in over.assumptions)


READS = """
import torch
shape = torch.tensor((3, 5), device="cuda")
assert shape[None].cpu().tolist() == [[3, 5]]
counts = torch.tensor([1, 0, 2]).cuda()
assert counts.sum().item() == 3
assert counts.nonzero().shape == (2, 1)
assert counts[counts > 0].shape == (2,)
assert torch.repeat_interleave(counts).shape == (3,)
assert torch.tensor([4, 4, 7], device="cuda").unique().shape == (2,)
with torch.inference_mode():
    assert (counts * 2).to("cpu").tolist() == [2, 0, 4]
torch.normal(torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda").exp())
drawn = torch.multinomial(torch.nn.Linear(9, 50).cuda()(torch.rand(4, 9, device="cuda")).exp(), 1)
assert drawn.tolist() == [[0]] * 4
ends = torch.tensor(list(range(1, 40)), device="cuda")
assert not torch.isin(drawn, ends).any()
assert torch.isin(ends, ends).all().item()
"""


@pytest.mark.skipif(CUDA is None, reason="MEMCALC_CUDA_PYTHON names no CUDA build")
@pytest.mark.parametrize("gpu", ["t4", "l4", "b300"])
def test_numbers_that_a_program_put_there_are_read_over_the_driver(gpu, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(READS)
    assert run(plan_of(["python", "train.py"], gpu=gpu), CUDA).code == 0
    monkeypatch.setenv("MEMCALC_READS", "zeros")
    assert run(plan_of(["python", "train.py"], gpu=gpu), CUDA).code == 1


DECIDES = """
import torch
total = torch.cuda.get_device_properties(0).total_memory
free, same = torch.cuda.mem_get_info()
assert total == same > free
print(free, total)
torch.cuda.set_per_process_memory_fraction(0.01)
try:
    torch.empty(1 << 20, device="cuda").repeat(999).sum()
except torch.OutOfMemoryError as error:
    print(torch.cuda.memory_allocated(), torch.cuda.memory_reserved())
"""


@pytest.mark.skipif(CUDA is None, reason="needs PyTorch's CUDA build")
@pytest.mark.parametrize("gpu", ["t4", None])
def test_both_back_ends_tell_of_the_same_memory(gpu, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(DECIDES)
    plan = plan_of(["python", "train.py"], steps=0, gpu=gpu, torch="2.13")
    simulate(plan)
    simulated = re.findall(r"^\d+ \d+$", "".join(capfd.readouterr()), re.MULTILINE)
    run(plan, CUDA)
    over = re.findall(r"^\d+ \d+$", "".join(capfd.readouterr()), re.MULTILINE)
    assert len(over) == 2
    assert simulated == over


TAKES = {
    "composed": COMPOSED,
    "columns": POINTS,
    "outer": APART,
    "places": WRITES.replace("ADDED", str(ADDED)),
}


@pytest.mark.skipif(CUDA is None, reason="needs PyTorch's CUDA build")
@pytest.mark.parametrize("name", TAKES)
def test_what_is_said_of_operators_holds_over_the_driver(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(TAKES[name])
    assert run(plan_of(["python", "train.py"], steps=0, gpu="t4"), CUDA).code == 0


@pytest.mark.skipif(CUDA is None, reason="needs PyTorch's CUDA build")
@pytest.mark.parametrize("conf", CONFS)
def test_what_is_given_back_is_so_over_the_driver(conf, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(GIVES_BACK.format(conf=conf))
    assert run(plan_of(["python", "train.py"], steps=0, gpu="t4"), CUDA).code == 0
    told = "given {} {} {}".format(*CONFS[conf])
    assert told in "".join(capfd.readouterr()).splitlines()


SAVES = """
import os, torch
model = torch.nn.Linear(64, 64).cuda()
torch.save(model.state_dict(), "kept.pt")
assert os.path.exists("kept.pt")
model.load_state_dict(torch.load("kept.pt", map_location="cuda"))
"""


@pytest.mark.skipif(CUDA is None, reason="needs PyTorch's CUDA build")
def test_a_checkpoint_of_the_user_is_not_written_over(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("kept.pt").write_text("precious")
    Path("train.py").write_text(SAVES)
    found = run(plan_of(["python", "train.py"], steps=0, gpu="t4"), CUDA)
    assert found.code == 0
    assert Path("kept.pt").read_text() == "precious"
    assert "checkpoints are not written (train.py:4)" in found.assumptions


@pytest.mark.skipif(CUDA is None, reason="needs PyTorch's CUDA build")
def test_a_trainer_leaves_an_earlier_run_as_it_is(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    state = tmp_path / "out" / "trainer_state.json"
    state.parent.mkdir()
    state.write_text("{}")
    Path("train.py").write_text(TRAINS)
    assert run(plan_of(["python", "train.py"], steps=0, gpu="t4"), CUDA).code == 0
    assert state.read_text() == "{}"
    assert os.listdir("out") == [state.name]
