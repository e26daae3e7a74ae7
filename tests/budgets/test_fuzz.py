"""Damaged and random budget files: never a traceback, never green by mistake."""

import contextlib
import io
import os
import tomllib
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.__main__ import run as command
from memcalc.budgets.read import KEYS, OWN_KEYS
from memcalc.budgets.starter import toml
from memcalc.records.fields import FIELDS

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


WORDS = ["1 GiB", "2%", "0 B", "t4", "a100", "gpt2", "sgd", "bf16", "trainer", "x=float32[2]"]
VALUES = st.recursive(
    st.one_of(
        st.text(max_size=12),
        st.sampled_from(WORDS),
        st.integers(-2, 1 << 70),
        st.floats(),
        st.booleans(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=6), inner, max_size=2)
    ),
    max_leaves=4,
)
USUAL = {
    "batch": [1, 4], "seq": [16, 64], "optim": ["adamw", "adam8bit", "sgd"], "grad_accum": [1, 2],
    "precision": ["fp32", "bf16", "amp-bf16"], "loop": ["plain", "trainer"], "gpu": ["t4", "a10"],
    "checkpointing": [True, False], "freeze": [["*embeddings*"], "*.bias"], "task": ["masked-lm"],
    "lora": ["r=8,target=all-linear"], "target": ["cpu", "cuda"], "torch": ["2.12.0"],
    "peak": ["1 B", "8 GiB", "900 MB"], "weights": ["200 MiB", "251 MiB", "263132168 B"],
    "optimizer_state": ["127 MiB", "1 GB"], "bytes_per_parameter": [1, 16.5, 40], "fits": ["t4"],
    "margin": ["1%", "50 MiB"], "max_growth": ["0 B", "2%"], "activations": ["1 GiB"],
}  # fmt: skip


@st.composite
def tables(draw, keys):
    """Keys with values that are usual for them, and now and then with any."""
    found = {}
    for key in draw(st.lists(st.sampled_from(keys), max_size=3, unique=True)):
        usual = st.sampled_from(USUAL.get(key, [0]))
        odd = draw(st.integers(0, 7)) == 0
        found[key] = draw(VALUES if odd or key not in USUAL else usual)
    return found


# Whatever traces, or asks the network for a model, has its own tests.
RUN = tables([key for key in (*FIELDS, *OWN_KEYS) if key in USUAL or key == "optim_args"])
LIMITS = tables([key for key in (*KEYS, "peek") if key in USUAL or key == "peek"])


def dump(table: dict, name: str) -> str:
    plain = {key: value for key, value in table.items() if value != {}}
    return f"[{name}]\n" + "".join(f"{key} = {any_toml(value)}\n" for key, value in plain.items())


def any_toml(value) -> str:
    """Write any value as TOML."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml(k)} = {any_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(any_toml(item) for item in value) + "]"
    return toml(value)


@given(RUN, LIMITS)
def test_random_values_are_judged_or_refused(run, limits):
    run.pop("limits", None)
    run |= {"model": "distilbert-base-cased", "method": "analytic"}
    text = dump(run, "runs.a") + dump(limits, "runs.a.limits")
    if code_of(text.encode()) == 0:
        believed(text.encode())


def test_nothing_is_left_behind():
    code_of(GOOD.encode())
    assert os.listdir() == ["memcalc.toml"]
