"""Shared objects that memcalc writes export what they are told, and load."""

import contextlib
import ctypes
import platform

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.engine.stub import elf

NAME = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_]{0,40}", fullmatch=True)
SONAME = st.from_regex(r"lib[a-z]{1,20}\.so\.[0-9]{1,2}", fullmatch=True)


@given(
    soname=SONAME,
    symbols=st.sets(NAME, max_size=60),
    needed=st.lists(SONAME, max_size=4, unique=True),
    machine=st.sampled_from(sorted(elf.MACHINES.values())),
)
def test_what_is_written_is_read_again(tmp_path_factory, soname, symbols, needed, machine):
    path = tmp_path_factory.mktemp("elf") / soname
    data = elf.make_shared_object(
        soname, symbols, needed=needed, runpath="$ORIGIN", machine=machine
    )
    path.write_bytes(data)
    assert elf.read(path) == elf.SharedObject(
        machine, soname, tuple(needed), frozenset(), frozenset(symbols)
    )


@pytest.mark.skipif(platform.machine() not in elf.MACHINES, reason="another machine")
def test_the_loader_takes_a_written_library_and_finds_each_function(tmp_path):
    names = [f"function_{number}" for number in range(500)]
    path = tmp_path / "libwritten.so.1"
    path.write_bytes(elf.make_shared_object("libwritten.so.1", names, machine=elf.machine()))
    library = ctypes.CDLL(str(path))
    assert {getattr(library, name)(7) for name in names} == {0}
    assert not hasattr(library, "function_500")


@pytest.mark.skipif(platform.machine() not in elf.MACHINES, reason="another machine")
def test_a_shell_brings_the_library_that_it_needs_from_its_own_folder(tmp_path):
    machine = elf.machine()
    (tmp_path / "libbehind.so").write_bytes(
        elf.make_shared_object("libbehind.so", ["behind"], machine=machine)
    )
    shell = elf.make_shared_object(
        "libshell.so.3", needed=["libbehind.so"], runpath="$ORIGIN", machine=machine
    )
    assert len(shell) < 700
    (tmp_path / "libshell.so.3").write_bytes(shell)
    assert ctypes.CDLL(str(tmp_path / "libshell.so.3")).behind() == 0


def test_a_compiled_library_says_what_it_needs():
    import _ctypes

    found = elf.read(__import__("pathlib").Path(_ctypes.__file__))
    assert "libc.so.6" in found.needed
    assert "PyInit__ctypes" in found.defined
    assert "dlsym" in found.wanted


@given(cut=st.integers(0, 2000), changed=st.integers(0, 2000), value=st.integers(0, 255))
def test_a_damaged_file_is_an_error_of_values(tmp_path_factory, cut, changed, value):
    data = bytearray(elf.make_shared_object("libx.so.1", ["one", "two"], needed=["liby.so.2"]))
    data = data[: len(data) - cut % len(data)]
    data[changed % len(data)] = value
    path = tmp_path_factory.mktemp("elf") / "libx.so.1"
    path.write_bytes(data)
    with contextlib.suppress(ValueError):
        elf.read(path)
