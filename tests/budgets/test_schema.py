"""The JSON Schema that editors use agrees with the reader."""

import json
import runpy
import tomllib

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from memcalc.budgets.read import read
from memcalc.budgets.records import share_or_size, size
from memcalc.errors import UsageError
from memcalc.units import parse_bytes
from tests.conftest import ROOT

SCHEMA = json.loads((ROOT / "configs" / "memcalc.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
GOOD = [
    'limits = { peak = "1 GiB" }',
    'limits.peak.reserved = "14.5GiB"\nlimits.peak.allocated = "15 GB"',
    "limits.bytes_per_parameter = 10",
    "limits.bytes_per_parameter.weights = 4.5",
    'limits.fits = "t4"\nlimits.margin = "500 MiB"',
    'limits.max_growth = "2%"',
    'limits.max_growth.optimizer_state = "0 B"\nlimits.max_growth.peak.reserved = "1.5 %"',
    'batch = 2\noptim_args = { lr = 0.1 }\nfreeze = "*.bias"\ninputs = ["x=float32[2]"]\n'
    'max_grad_norm = 1\ncheckpointing = true\nmethod = "analytic"\nlimits.weights = "1 B"',
]
BAD = [
    'limits = { peek = "1 GiB" }',
    "limits = { peak = 5 }",
    'limits = { peak = "5 Gb/s" }',
    'limits = { peak = "5%" }',
    'limits.peak.reservd = "1 GiB"',
    "limits.peak = {}",
    "limits.bytes_per_parameter = 0",
    'limits.max_growth = "fast"',
    'limits.max_growth.fits = "1%"',
    'bacth = 2\nlimits.peak = "1 B"',
    'method = "guess"\nlimits.peak = "1 B"',
]


def test_the_shipped_schema_is_the_one_the_reader_makes():
    made = runpy.run_path(str(ROOT / "scripts" / "make_budget_schema.py"))["text"]()
    assert (ROOT / "configs" / "memcalc.schema.json").read_text() == made
    jsonschema.Draft202012Validator.check_schema(json.loads(made))


def test_every_key_is_explained():
    run = SCHEMA["$defs"]["run"]["properties"]
    assert [
        name for name, told in run.items() if name != "limits" and not told["description"]
    ] == []


@pytest.mark.parametrize("body", GOOD)
def test_what_the_reader_takes_the_schema_takes(write, body):
    text = f'[runs.a]\nmodel = "gpt2"\n{body}\n'
    read(write(text))
    VALIDATOR.validate(tomllib.loads(text))


@pytest.mark.parametrize("body", BAD)
def test_what_the_reader_refuses_the_schema_refuses(write, body):
    text = f'[runs.a]\nmodel = "gpt2"\n{body}\n'
    with pytest.raises(UsageError):
        read(write(text))
    assert not VALIDATOR.is_valid(tomllib.loads(text))


@pytest.mark.parametrize("path", sorted((ROOT / "configs" / "budgets").glob("*.toml")), ids=str)
def test_shipped_budgets_are_valid(path):
    read(path)
    VALIDATOR.validate(tomllib.loads(path.read_text()))


SIZES = st.one_of(
    st.builds(
        "{}{}{}{}{}".format,
        st.sampled_from(["", " ", "\n"]),
        st.sampled_from(
            ["4", "0", "4.5", ".5", "4.", "-4", "1e3", "\u0664", "9" * 20, "9" * 21, ""]
        ),
        st.sampled_from(["", " ", "\t "]),
        st.sampled_from(["GiB", "Gib", "gb", "KB", "B", "b", "%", "Gi", "bits", "GiBs", "\u212ab"]),
        st.sampled_from(["", " ", "\n", "."]),
    ),
    st.text(max_size=6),
    st.integers(0, 9),
)


@pytest.mark.parametrize(("kind", "reader"), [("size", size), ("share", share_or_size)])
@given(value=SIZES)
def test_a_size_is_one_to_the_reader_and_to_the_schema(kind, reader, value):
    try:
        if isinstance(value, str):
            parse_bytes(value)
    except UsageError as error:
        # No pattern tells that a number is too large.
        assume("fits a machine" not in str(error))
    try:
        reader(value)
        taken = True
    except UsageError:
        taken = False
    assert jsonschema.Draft202012Validator(SCHEMA["$defs"][kind]).is_valid(value) == taken


@pytest.mark.parametrize(
    "limits",
    [
        'optimizer_state = "1 GiB"\noptimizer-state = "2 GiB"',
        'max_growth = "1%"\nmax-growth = "2%"',
        'margin = "1%"\n"margin" = "2%"',
        "peak.process_used = '1 GiB'\npeak.process-used = '2 GiB'",
        'max_growth.peak = "1%"\nmax_growth."peak" = "2%"',
    ],
)
def test_a_limit_given_twice_is_refused_with_its_line(write, limits):
    path = write(f'[runs.a]\nmodel = "gpt2"\n[runs.a.limits]\n{limits}\n')
    with pytest.raises(UsageError, match=r"memcalc\.toml:\d: "):
        read(path)
