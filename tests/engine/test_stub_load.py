"""The stub driver comes before NVIDIA's libraries, whichever are here."""

import json
import os
import platform
import subprocess
import sys

import pytest

from memcalc.engine.stub import build, elf, load
from memcalc.errors import EstimateError
from memcalc.files.compiler import system_compiler
from tests.engine.stub_process import needs_cuda_torch, python_of_tests

OPEN = """
import json, os, sys
from pathlib import Path
from memcalc.engine.stub import load
stub = load.prepare(Path(sys.argv[1]), sys.argv[2])
load.load_into_process(stub)
"""
LOOK = """
import re, torch
torch.backends.cudnn.enabled = False
x = torch.arange(100, device="cpu").cuda()
layer = torch.nn.Linear(64, 64, device="cuda")
layer(torch.randn(8, 64, device="cuda")).sum().backward()
mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
print(json.dumps({
    "name": torch.cuda.get_device_name(),
    "sum": x.cpu().sum().item(),
    "peak": torch.cuda.max_memory_allocated(),
    "nvidia": sorted(p for p in mapped if re.search("/nvidia/|/lib(cuda|nvidia)[.-]", p)
                     and "/stub/" not in p),
}))
"""


def needs_the_machine():
    if platform.machine() not in elf.MACHINES or system_compiler() is None:
        pytest.skip("needs a C compiler, and x86-64 or aarch64")


def fake_torch(tmp_path, *needed):
    """A PyTorch of which nothing is there but what it is linked to."""
    library = tmp_path / "site/torch/lib/libtorch_cuda.so"
    library.parent.mkdir(parents=True)
    library.write_bytes(elf.make_shared_object("libtorch_cuda.so", ["own"], needed=needed))
    return library.parents[1]


def run_over(environment, code):
    python, _, _ = needs_cuda_torch()
    done = subprocess.run(
        [python, "-c", "import json\n" + code],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_in_this_process_nothing_of_nvidias_is_used(stub_cache):
    _, root, cuda = needs_cuda_torch()
    found = json.loads(
        python_of_tests(OPEN + LOOK, root, cuda, env={"MEMCALC_STUB_NAME": "Imaginary 9000"})
    )
    assert found["name"] == "Imaginary 9000"
    assert (found["sum"], found["nvidia"]) == (4950, [])
    assert found["peak"] > 0


def test_a_fresh_process_runs_over_it_by_its_environment(stub_cache):
    _, root, cuda = needs_cuda_torch()
    found = run_over(load.environment(load.prepare(root, cuda)), LOOK)
    assert (found["name"], found["sum"], found["nvidia"]) == ("simulated GPU", 4950, [])


@pytest.mark.nightly
def test_a_driver_of_nvidias_in_the_machine_is_not_touched_nor_by_children(stub_cache, tmp_path):
    _, root, cuda = needs_cuda_torch()
    child = tmp_path / "child.py"
    child.write_text("import json\n" + LOOK)
    machine = elf.machine()
    for soname in ("libcuda.so.1", "libnvidia-ml.so.1"):
        # Whoever asks it for a GPU hears that all went well, and gets none.
        names = ["cuInit", "cuDeviceGetCount", "nvmlInit_v2", "nvmlDeviceGetCount_v2"]
        (tmp_path / soname).write_bytes(elf.make_shared_object(soname, names, machine=machine))
    code = """
import ctypes, pynvml
pynvml.nvmlInit()
assert pynvml.nvmlDeviceGetCount() == 1
for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
    assert ctypes.CDLL(name).memcalc_stub_maps() == 1
mapped = open("/proc/self/maps").read()
"""
    code += f"assert {str(tmp_path)!r} not in mapped\n"
    code += "import subprocess\nsubprocess.run([sys.executable, sys.argv[3]], check=True)"
    place = {"LD_LIBRARY_PATH": str(tmp_path)}
    found = json.loads(python_of_tests(OPEN + code, root, cuda, child, env=place))
    assert (found["name"], found["sum"], found["nvidia"]) == ("simulated GPU", 4950, [])


@pytest.mark.nightly
def test_what_the_library_lacks_is_made_to_do_nothing(tmp_path):
    _, root, cuda = needs_cuda_torch()
    needs_the_machine()
    lacking = ("cublasDdot_v2", "cudaGraphLaunch", "cublasZgemm_v2")
    code = """
import json, platform, sys
from pathlib import Path
from memcalc.engine.stub import build, load
from memcalc.files.compiler import system_compiler
folder = Path(sys.argv[3])
build.NOOPS = folder / "noops.txt"
build.build(folder, system_compiler(), platform.machine())
load.libraries = lambda: folder
"""
    names = build.NOOPS.read_text().split()
    (tmp_path / "noops.txt").write_text("\n".join(name for name in names if name not in lacking))
    assert set(lacking) <= set(names)
    own = {"MEMCALC_CACHE": str(tmp_path / "cache")}
    code += OPEN.replace(
        "load.load_into_process(stub)", "load.load_into_process(stub)\nmade = stub.missing"
    )
    found = json.loads(
        python_of_tests(
            code + LOOK.replace("print(json.dumps({", 'print(json.dumps({"made": made,'),
            *(root, cuda, tmp_path),
            env=own,
        )
    )
    assert set(found["made"]) == set(lacking)
    assert found["sum"] == 4950


@pytest.mark.nightly
def test_without_room_for_addresses_reads_are_zeros(stub_cache):
    _, root, cuda = needs_cuda_torch()
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_AS, (64 << 30, 64 << 30))\n"
    code = limit + OPEN + "assert not load.maps()\n" + LOOK
    found = json.loads(python_of_tests(code, root, cuda))
    assert found["sum"] == 0
    assert found["peak"] > 0


def test_pytorch_has_all_that_it_asks_for_without_help(stub_cache):
    _, root, cuda = needs_cuda_torch()
    assert load.prepare(root, cuda).missing == ()


def test_each_soname_gets_a_shell_and_the_second_question_writes_nothing(tmp_path, stub_cache):
    needs_the_machine()
    root = fake_torch(tmp_path, "libcudart.so.99", "libcunew.so.1", "libc.so.6", "libc10.so")
    stub = load.prepare(root, "99.1")
    assert stub.cuda == 99010
    own = [path for path in stub.folder.glob("*.so*") if path.name != build.NAME]
    sonames = {elf.read(path).soname for path in own}
    assert sonames == {"libcudart.so.99", "libcunew.so.1", "libcuda.so.1", "libnvidia-ml.so.1"}
    before = {path: path.stat().st_mtime_ns for path in stub.folder.iterdir()}
    assert load.prepare(root, "99.1") == stub
    assert {path: path.stat().st_mtime_ns for path in stub.folder.iterdir()} == before


def test_a_changed_pytorch_is_looked_at_again(tmp_path, stub_cache):
    needs_the_machine()
    root = fake_torch(tmp_path, "libcudart.so.99")
    first = load.prepare(root, "99.0")
    library = root / "lib/libtorch_cuda.so"
    library.write_bytes(elf.make_shared_object("libtorch_cuda.so", needed=["libcublas.so.99"]))
    second = load.prepare(root, "99.0")
    assert not (first.folder / "libcublas.so.99").exists()
    assert (second.folder / "libcublas.so.99").exists()


def test_compiled_packages_beside_pytorch_count_where_their_cuda_is_pytorchs(tmp_path, stub_cache):
    needs_the_machine()
    root = fake_torch(tmp_path, "libcudart.so.13")
    package = root.parent / "bitsandbytes"
    package.mkdir()
    for major, other in ((13, "libcusparse.so.12"), (12, "libcublas.so.12")):
        name = f"libbitsandbytes_cuda{major}0.so"
        needed = [f"libcudart.so.{major}", other]
        (package / name).write_bytes(elf.make_shared_object(name, needed=needed))
    (package / "broken.so").write_bytes(b"\x7fELF\x02\x01 and no more")
    names = {path.name for path in load.prepare(root, "13.0").folder.iterdir()}
    assert "libcusparse.so.12" in names
    assert not names & {"libcublas.so.12", "libcudart.so.12"}


def test_what_the_user_preloads_is_kept(monkeypatch, tmp_path):
    stub = load.Stub(library=tmp_path / "x.so", folder=tmp_path, cuda=13000)
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/mine.so:/usr/lib/other.so")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/lib")
    found = load.environment(stub, tmp_path / "processes")
    assert found["LD_PRELOAD"].split(":")[:2] == [
        str(tmp_path / name) for name in (build.SHIM, build.NAME)
    ]
    assert found["LD_PRELOAD"].endswith(":/usr/lib/mine.so:/usr/lib/other.so")
    assert found["LD_LIBRARY_PATH"] == f"{tmp_path}:/opt/lib"
    assert found["MEMCALC_STUB_PROCESSES"] == str(tmp_path / "processes")
    for name, value in found.items():
        monkeypatch.setenv(name, value)
    assert load.environment(stub, tmp_path / "processes") == found


def test_a_temporary_folder_that_the_loader_cannot_name_is_told(tmp_path, monkeypatch):
    needs_the_machine()
    monkeypatch.setenv("MEMCALC_WORK", str(tmp_path / "with space"))
    with pytest.raises(EstimateError, match="set TMPDIR to a folder whose name has no spaces"):
        load.prepare(fake_torch(tmp_path, "libcudart.so.13"), "13.0")


def test_a_folder_without_pytorch_is_named(tmp_path):
    with pytest.raises(EstimateError, match="There is no PyTorch in"):
        load.prepare(tmp_path / "torch", "13.0")


def test_without_a_compiler_a_checkout_says_what_to_install(tmp_path, monkeypatch):
    needs_the_machine()
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    monkeypatch.setenv("CC", "no-such-compiler")
    monkeypatch.setattr(build, "BUILT", tmp_path / "built")
    with pytest.raises(EstimateError, match="install gcc or clang"):
        load.prepare(fake_torch(tmp_path, "libcudart.so.13"), "13.0")


def test_libraries_are_not_loaded_from_a_folder_that_others_can_write_to(tmp_path, monkeypatch):
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path))
    _, root, cuda = needs_cuda_torch()
    made = load.prepare(root, cuda)
    for path in (made.folder, made.folder.parent, tmp_path):
        mode = path.stat().st_mode
        path.chmod(0o777)
        with pytest.raises(EstimateError, match=f"Another user can write to {path}"):
            load.prepare(root, cuda)
        path.chmod(mode)
    tmp_path.chmod(0o1777)
    assert load.prepare(root, cuda) == made


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["file", "has space"])
def test_libraries_that_the_cache_cannot_hold_go_with_the_process(tmp_path, name):
    (tmp_path / "file").write_text("")
    (tmp_path / "tmp").mkdir()
    chosen = {"MEMCALC_CACHE": str(tmp_path / name), "TMPDIR": str(tmp_path / "tmp")}
    done = subprocess.run(
        [sys.executable, "-m", "memcalc", *"estimate gpt2 --batch 1 --seq 8 --gpu t4".split()],
        env={**os.environ, **chosen},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0
    assert "fits on T4" in done.stdout
    told = f"not cached: {tmp_path}/file cannot be written" in done.stderr
    assert told == (name == "file")
    assert list((tmp_path / "tmp").iterdir()) == []
