"""Damaged budget files: never a traceback, never green by mistake."""

import contextlib
import io
import os
import tomllib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.__main__ import run as command

WEIGHTS = 263_132_168
GOOD = """# budgets
[defaults]
model = "distilbert-base-cased"
method = "analytic"
batch = 2

[runs.one]
seq = 32
[runs.one.limits]
peak = "8 GiB"
weights = "251 MiB"

[runs."the other"]
limits = { weights = "300 MB", bytes_per_parameter = 99 }
"""
UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12} | {
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def code_of(text: bytes) -> int:
    """The exit code of a check of this file, which ends in no traceback."""
    with open("memcalc.toml", "wb") as file:
        file.write(text)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = command(["check", "--jobs", "1"])
    assert code in (0, 1, 2, 3), err.getvalue()
    assert "memcalc itself failed" not in err.getvalue()
    assert bool(out.getvalue()) == (code != 2)
    return code


def holds(limit: str) -> bool:
    """Do the weights of DistilBERT keep this limit, by arithmetic of our own?"""
    number = "".join(sign for sign in limit if sign in "0123456789.")
    unit = "".join(sign for sign in limit if sign.isalpha()).upper()
    return Fraction(number) * UNITS[unit] >= WEIGHTS


def believed(text: bytes) -> None:
    """What a green answer rests on: runs, each with limits, and those of the weights hold."""
    data = tomllib.loads(text.decode("utf-8-sig"))
    shared = data.get("defaults", {})
    assert data["runs"]
    for run in data["runs"].values():
        limits = {**shared.get("limits", {}), **run.get("limits", {})}
        assert set(limits) - {"margin"}
        if "weights" in limits and run.get("model", shared.get("model")) == "distilbert-base-cased":
            precision = run.get("precision", shared.get("precision", "fp32"))
            assert holds(limits["weights"]) or precision in ("bf16", "fp16")


def test_the_file_that_is_damaged_below_is_green_when_whole():
    assert code_of(GOOD.encode()) == 0
    believed(GOOD.encode())


@given(st.data())
def test_a_damaged_file_is_green_only_where_its_budgets_hold(data):
    text = bytearray(GOOD.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text) - 1))
        length = data.draw(st.integers(0, 12))
        put = data.draw(st.sampled_from([b"", b"0", b"9", b"\n", b"[", b'"', b"=", b"K", b"\xff"]))
        text[at : at + length] = put
    if code_of(bytes(text)) == 0:
        believed(bytes(text))


def test_nothing_is_left_behind():
    code_of(GOOD.encode())
    assert os.listdir() == ["memcalc.toml"]
