"""A field of a plan is declared once, and everything that takes settings agrees on it."""

import json
import runpy
import shlex
import tomllib
from typing import Annotated, Literal

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import Meta

import memcalc.catalog.plan
from memcalc.budgets.read import read
from memcalc.budgets.starter import toml
from memcalc.catalog.plan import make
from memcalc.cli.command import ALL, Command
from memcalc.cli.options import make_plans, with_plan
from memcalc.dialects import FILES
from memcalc.errors import UsageError
from memcalc.files import shipped
from memcalc.records import fields
from memcalc.records.fields import FIELDS, options
from memcalc.records.plan import Plan
from memcalc.records.values import about, adapter, parse_input

LIMITS = "\n[runs.a.limits]\npeak = '1 GiB'\n"


ASKED: list[Plan] = []


def command() -> Command:
    """A command with the options of a plan, which leaves what it was asked for in ``ASKED``."""

    @with_plan()
    def ask(settings: dict) -> None:
        """Ask."""
        ASKED[:] = make_plans(settings)

    return ask


APP = command()
SCHEMA = json.loads((shipped.configs() / "memcalc.schema.json").read_text())
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def typed(words: list[str], app: Command = APP) -> Plan | str:
    """The plan of a command line, or the sentence that refuses it."""
    try:
        app.invoke(app.make_context("ask", list(words)))
    except UsageError as error:
        return str(error)
    (plan,) = ASKED
    return plan


def in_python(settings: dict) -> Plan | str:
    try:
        return make(settings)
    except UsageError as error:
        return str(error)


@pytest.fixture(scope="module")
def in_file(tmp_path_factory):
    """Reads settings from a budget file; returns its plan or the sentence that refuses it."""
    path = tmp_path_factory.mktemp("budgets") / "memcalc.toml"

    def of(text: str) -> Plan | str:
        path.write_text(f"[runs.a]\n{text}{LIMITS}", encoding="utf-8")
        try:
            return read(path).runs[0].plan
        except UsageError as error:
            return str(error).partition(": ")[2]

    return of


def any_toml(value) -> str:
    """Write any value as TOML."""
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml(k)} = {any_toml(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(any_toml(item) for item in value) + "]"
    return toml(value)


# No surrogates, which no file can hold, and no NUL, which no argument of a program can.
TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12)
NUMBERS = st.one_of(
    st.integers(-3, 9),
    # TOML has no larger ones.
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(),
    st.sampled_from([8.0, 1 << 20, (1 << 20) + 1, 1 << 24, 1 << 53, 1e300, 1e301]),
)
LORA = st.lists(
    st.sampled_from(
        ["r=4", "r=0", "r=9999", "r=10^9", "r=1e3", "r=٣", " r=8", "r", "rank=4", "target=q+v", "",
         "target=all-linear", "target=", "target=+q", "alpha=x", "alpha=16", "alpha=1.5",
         "alpha=-1", "alpha=nan", "dropout=0.1", "dropout=1", "dropout=0"]
    ),
    max_size=3,
).map(",".join)  # fmt: skip
INPUTS = st.builds(
    "{}={}[{}]{}".format,
    st.sampled_from(["x", "a.b", "", " x", "ä"]),
    st.sampled_from(["float32", "int64", "float33", "string", ""]),
    st.lists(st.sampled_from(["8", "0", " 3 ", "-1", "٣", "9" * 13, ""]), max_size=3).map(",".join),
    st.sampled_from(["", "\n", "]"]),
)
USUAL = {
    "lora": LORA,
    "inputs": st.one_of(INPUTS, st.lists(INPUTS, max_size=2)),
    "torch": st.one_of(st.sampled_from(["2.13", "2.13.0+cu130", "2", "two.13", "2.13\n", "٢.١٣"])),
    "optim_args": st.dictionaries(
        st.one_of(st.sampled_from(["lr", "32bit", "a-b", ""]), TEXTS),
        st.one_of(NUMBERS, TEXTS, st.booleans(), st.lists(NUMBERS, max_size=1)),
        max_size=2,
    ),
}
ANY = st.one_of(TEXTS, NUMBERS, st.booleans(), st.lists(TEXTS, max_size=2))


@st.composite
def settings(draw):
    """A field and a value: one of its choices, one of its kind, or anything."""
    # What a name stands for that is looked up is another matter: a model, a launcher's file.
    looked_up = ("model", *FILES)
    told = [field for field in FIELDS.values() if field.option and field.name not in looked_up]
    field = draw(st.sampled_from(told))
    kinds = {int: NUMBERS, float: NUMBERS, bool: st.booleans(), str: TEXTS}
    choices = [st.sampled_from(field.choices)] if field.choices else []
    usual = USUAL.get(field.name, kinds[field.kind])
    return field.name, draw(st.one_of(*choices, usual, usual, ANY))


def words_for(name: str, value) -> list[str] | None:
    """What a person would type for a value; ``None`` where the command line cannot say it."""
    field = FIELDS[name]
    if field.is_table:
        plain = isinstance(value, dict) and not any(
            isinstance(item, list) or "=" in key or key != key.strip()
            for key, item in value.items()
        )
        return field.write(value.items()) if plain else None
    kind, kinds = field.kind, {bool: bool, int: int | float, float: int | float, str: str}
    values = value if field.repeats and isinstance(value, list) else [value]
    for item in values:
        if not isinstance(item, kinds[kind]) or isinstance(item, bool) != (kind is bool):
            return None
    return field.write(values if field.repeats else value)


@given(settings())
@example(("batch", 8.0))
@example(("kbit_prepare", False))
@example(("batch", True))
@example(("max_grad_norm", float("nan")))
@example(("optim_args", {"lr": "1e-3", "name": "true", "b": '"x"'}))
@example(("freeze", []))
@example(("lora", "r=4,r=5"))
def test_a_setting_means_the_same_everywhere_or_is_refused_everywhere(in_file, setting):
    name, value = setting
    found = in_python({"model": "gpt2", name: value})
    assert in_file(f'model = "gpt2"\n{name} = {any_toml(value)}\n') == found
    words = words_for(name, value)
    if words is not None and not (name == "optim" and ("," in value or value == "all")):
        assert typed(["gpt2", *words]) == found
    alone = isinstance(found, Plan) or f"{name} needs " in found
    file = {"runs": {"a": {"model": "gpt2", name: value, "limits": {"peak": "1 GiB"}}}}
    # JSON knows no number that is none.
    assert "nan" in repr(value) or VALIDATOR.is_valid(file) == alone
    if isinstance(found, str):
        assert name in found
        assert found.endswith(".")
        assert "\n" not in found


@given(settings(), settings())
def test_a_plan_as_options_is_the_same_plan(one, two):
    plan = in_python({"model": "gpt2", **dict([one, two])})
    if isinstance(plan, Plan) and "," not in plan.optim and plan.optim != "all":
        assert typed(shlex.split(options(plan))) == plan


def test_a_plan_that_a_recipe_says_is_written_as_that_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "axolotl.yaml").write_text(
        "base_model: openai-community/gpt2\nmicro_batch_size: 2\nsequence_len: 64\n"
        "datasets: [{path: x, type: alpaca}]\n"
    )
    named = {"model": "gpt2", "recipe": "axolotl.yaml"}
    for words, settings in (
        ("axolotl.yaml", {"model": "axolotl.yaml"}),
        ("axolotl.yaml --seq 32", {"recipe": "axolotl.yaml", "seq": 32}),
        ("gpt2 --gpu t4 --recipe axolotl.yaml", {**named, "gpu": "t4"}),
    ):
        (plan,) = make_plans(settings)
        assert (options(plan), plan.batch) == (words, 2)


def test_arguments_are_read_as_what_they_look_like():
    pairs = ["a=1", "b=0.5", "c=true", "d=none", "e=word", "f=1e-3", 'g="1"', "h= x = y "]
    assert dict(FIELDS["optim_args"].read(tuple(pairs))) == {
        "a": 1, "b": 0.5, "c": True, "d": None, "e": "word", "f": 1e-3, "g": "1", "h": "x = y",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--optim-arg", "a"], "write key=value"),
        (["--optim-arg", "lr=1", "--optim-arg", "lr=2"], "names lr twice"),
        (["--optim-arg", "lr=nan"], "is not a table"),
        (["--optim", ""], "not empty"),
        (["--optim", "adamw,"], "not empty"),
        (["--batch", "\u0663"], "is not a whole number from 1 to 1,048,576."),
        (["--max-grad-norm", "-1"], "is not a number above 0."),
        (["--precision", "fp31"], "did you mean fp32"),
        (["--lora", "r=4,alpha=x"], "such as 16 or r=16,target=all-linear"),
        (["--lora", "4,r=8"], "such as 16 or r=16,target=all-linear"),
    ],
)
def test_what_is_typed_wrong_is_told_in_one_sentence(words, said):
    found = typed(["gpt2", *words])
    assert said in found
    assert "\n" not in found


def test_a_setting_in_two_spellings_is_refused(in_file, tmp_path):
    message = "grad_accum is given twice"
    text = 'model = "gpt2"\ngrad_accum = 2\ngrad-accum = 4\n'
    assert message in in_file(text)
    assert message in in_python(tomllib.loads(text))
    (tmp_path / "plan.toml").write_text(text)
    assert message in typed(["--plan", str(tmp_path / "plan.toml")])


def test_the_command_line_wins_over_the_plan_file(tmp_path):
    (tmp_path / "plan.toml").write_text('model = "gpt2"\ngrad-accum = 2\nbatch = 3\n')
    plan = typed(["--plan", str(tmp_path / "plan.toml"), "--grad-accum", "4"])
    assert plan == Plan(model="gpt2", grad_accum=4, batch=3)


def test_a_lora_text_says_what_peft_is_given():
    found = adapter("target=q_proj+v_proj, r=4,dropout=0.1")
    assert (found.r, found.target, found.alpha, found.dropout) == (4, ("q_proj", "v_proj"), 8, 0.1)
    plain = adapter("alpha=3")
    assert (plain.r, plain.target, plain.alpha, plain.dropout) == (16, "all-linear", 3, 0)
    with pytest.raises(UsageError, match="r=16,target=all-linear"):
        adapter("r=0")


def test_an_input_is_a_name_a_type_and_a_shape():
    assert parse_input("x = float32[8, 3,224,]") == ("x", "float32", (8, 3, 224))
    assert parse_input("x=int64[]") == ("x", "int64", ())


class Wider(Plan, frozen=True, kw_only=True):
    """A plan with one field more, declared as all are."""

    keep: Annotated[Literal["all", "some"], about("Loop")] = "all"
    """Outputs to keep."""
    cards: Annotated[Annotated[int, Meta(ge=1, le=8)] | None, about("GPU", otherwise="one")] = None
    """GPUs."""


def test_a_new_field_is_declared_in_one_place_only(monkeypatch, in_file):
    for name, field in fields.declare_fields(Wider).items():
        monkeypatch.setitem(FIELDS, name, field)
    monkeypatch.setattr(memcalc.catalog.plan, "Plan", Wider)
    wanted = Wider(model="gpt2", keep="some", cards=4)
    assert in_python({"model": "gpt2", "keep": "some", "cards": 4}) == wanted
    assert in_file('model = "gpt2"\nkeep = "some"\ncards = 4') == wanted
    app = command()
    assert typed(["gpt2", "--keep", "some", "--cards", "4"], app) == wanted
    assert options(wanted) == "gpt2 --batch 8 --keep some --cards 4"
    refused = "cards = 9 is not a whole number from 1 to 8."
    assert typed(["gpt2", "--cards", "9"], app) == refused
    assert in_file('model = "gpt2"\ncards = 9') == refused
    made = runpy.run_path(str(shipped.configs().parent / "scripts" / "make_budget_schema.py"))
    assert made["schema"]()["$defs"]["run"]["properties"]["cards"] == {
        "type": "integer", "minimum": 1, "maximum": 8, "description": "GPUs. Default: one.",
    }  # fmt: skip
    context = app.make_context("ask", ["gpt2"])
    context.meta[ALL] = True
    shown = app.get_help(context)
    assert "Outputs to keep. Choices: all, some." in " ".join(shown.split())
