"""The JSON Schema that editors use agrees with the reader."""

import json
import pathlib
import runpy
import tomllib

import jsonschema
import pytest

from memcalc.budgets.read import read
from memcalc.budgets.schema import schema
from memcalc.errors import UsageError

ROOT = pathlib.Path(__file__).parent.parent.parent
VALIDATOR = jsonschema.Draft202012Validator(schema())
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
    'batch = 0\nlimits.peak = "1 B"',
    'batch = true\nlimits.peak = "1 B"',
    'precision = "fp8"\nlimits.peak = "1 B"',
    'bacth = 2\nlimits.peak = "1 B"',
    'method = "guess"\nlimits.peak = "1 B"',
]


def test_the_shipped_schema_is_the_one_the_reader_makes():
    made = runpy.run_path(str(ROOT / "scripts" / "make_budget_schema.py"))["text"]()
    assert (ROOT / "configs" / "memcalc.schema.json").read_text() == made
    jsonschema.Draft202012Validator.check_schema(json.loads(made))


def test_every_key_is_explained():
    run = schema()["$defs"]["run"]["properties"]
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
