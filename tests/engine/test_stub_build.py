"""The libraries are compiled by whatever compiler there is, and by themselves."""

import importlib.util
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

import memcalc
from memcalc.engine.stub import build, elf
from memcalc.files.compiler import CompileError, system_compiler


def needs_a_compiler():
    if platform.machine() not in elf.MACHINES or system_compiler() is None:
        pytest.skip("needs a C compiler, and x86-64 or aarch64")


@pytest.mark.nightly
def test_an_installer_compiles_what_is_written_and_what_does_nothing(tmp_path):
    needs_a_compiler()
    code = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(Path(memcalc.__file__).parents[1])!r})
from memcalc.engine.stub import build
from memcalc.files.compiler import system_compiler
compiler = system_compiler()
assert build.works(compiler)
build.build(Path({str(tmp_path)!r}), compiler, {platform.machine()!r})
"""
    # Where an installer runs it there is nothing of what memcalc needs.
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)
    assert build.is_current(tmp_path, platform.machine())
    found = elf.read(tmp_path / build.NAME)
    assert found.soname == build.NAME
    assert found.machine == elf.machine()
    assert set(build.NOOPS.read_text().split()) < found.defined
    assert {"cudaMalloc", "ncclAllReduce", "nvmlInit_v2"} < found.defined
    # What its files share is theirs alone.
    assert not {name for name in found.defined if name.startswith("memcalc_")} - {
        *("memcalc_stub_answer", "memcalc_stub_holds", "memcalc_stub_maps", "memcalc_stub_mark"),
        *(
            "memcalc_stub_arrivals",
            "memcalc_stub_arrived",
            "memcalc_stub_reload",
            "memcalc_stub_sent",
            "memcalc_stub_when_unknown",
            "memcalc_stub_when_promised",
            "memcalc_stub_promise",
            "memcalc_stub_zero",
            "memcalc_stub_moments",
            "memcalc_stub_hold_back",
            "memcalc_stub_others",
            "memcalc_stub_visible",
            "memcalc_stub_keep_up",
            "memcalc_stub_transfer",
        ),
    }
    os.truncate(tmp_path / build.NAME, 0)
    assert not build.is_current(tmp_path, platform.machine())


@pytest.mark.skipif(importlib.util.find_spec("ziglang") is None, reason="ziglang is not here")
@pytest.mark.parametrize("machine", sorted(build.ZIG_TARGETS))
def test_zig_compiles_it_for_either_machine(tmp_path, machine):
    build.build(tmp_path, build.zig(machine), machine)
    found = elf.read(tmp_path / build.NAME)
    assert found.machine == elf.MACHINES[machine]
    assert "cudaMalloc" in found.defined
    assert elf.read(tmp_path / build.SHIM).machine == elf.MACHINES[machine]


def test_what_is_no_compiler_does_not_work():
    assert not build.works(["no-such-compiler"])
    assert not build.works(["false"])


def test_other_sources_have_another_mark(tmp_path, monkeypatch):
    before = build.mark("x86_64")
    changed = tmp_path / "changed.c"
    changed.write_text("int changed;")
    monkeypatch.setattr(build, "sources", lambda: [changed])
    assert build.mark("x86_64") != before


def test_sources_that_do_not_compile_are_an_error_that_quotes_the_compiler(tmp_path):
    needs_a_compiler()
    noops = tmp_path / "noops.txt"
    noops.write_text("not a name!")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "NOOPS", noops)
        patch.setattr(build, "sources", list)
        with pytest.raises(CompileError, match=r"cannot compile the stub driver: .*error"):
            build.build(tmp_path, system_compiler(), platform.machine())
    assert not (tmp_path / build.NAME).exists()


def test_names_that_do_nothing_are_in_order_and_once():
    names = build.NOOPS.read_text().split()
    assert names == sorted(set(names))
