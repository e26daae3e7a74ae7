"""Budget files: what is understood, and the sentence for what is not."""

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.budgets.read import read
from memcalc.budgets.records import Rule
from memcalc.budgets.source import Source, discover, locate
from memcalc.errors import UsageError


def only_run(path):
    (run,) = read(path).runs
    return run


def refused(write, text, name="memcalc.toml"):
    with pytest.raises(UsageError) as caught:
        read(write(text, name))
    return str(caught.value)


def test_defaults_reach_every_run_and_a_run_wins(write):
    path = write("""
[defaults]
model = "gpt2"
batch = 4
limits.peak = "1 GiB"
limits.weights = "1 GiB"
[runs.a]
[runs.b]
batch = 2
limits.peak = "2 GiB"
""")
    a, b = read(path).runs
    assert (a.plan.batch, b.plan.batch) == (4, 2)
    assert [run.budgets[0].amount.bytes for run in (a, b)] == [1 << 30, 2 << 30]
    assert [len(run.budgets) for run in (a, b)] == [2, 2]
    assert [run.budgets[0].where.line for run in (a, b)] == [5, 10]


def test_gb_and_gib_are_different_sizes(write, small):
    run = only_run(write(small('peak.reserved = "15 GB"\nweights = "15 GiB"')))
    assert [budget.amount.bytes for budget in run.budgets] == [15 * 10**9, 15 * 2**30]


def test_peak_alone_is_allocated_and_requested_where_there_is_no_allocator(write):
    text = '[runs.a]\nmodel = "gpt2"\n{}\n[runs.a.limits]\npeak = "1 GiB"\n'
    metrics = [
        only_run(write(text.format(more))).budgets[0].metric
        for more in ("", 'target = "cpu"', 'method = "analytic"')
    ]
    assert metrics == ["peak.allocated", "peak.requested", "peak.requested"]


def test_every_kind_of_limit_is_read(write, small):
    run = only_run(
        write(
            small(
                'peak.allocated = "1 GiB"\nbytes_per_parameter = 10\nfits = "T4"\nmargin = "5%"\n'
                'max_growth.weights = "0 B"\nmax_growth.peak = "2%"'
            )
        )
    )
    assert {(budget.rule, budget.metric) for budget in run.budgets} == {
        (Rule.MAX, "peak.allocated"),
        (Rule.MAX, "bytes_per_parameter"),
        (Rule.FITS, "fits"),
        (Rule.GROWTH, "weights"),
        (Rule.GROWTH, "peak.requested"),
    }
    with_margin = {budget.metric for budget in run.budgets if budget.margin is not None}
    assert with_margin == {"peak.allocated", "fits"}
    assert run.plan.gpu == "T4"


def test_a_run_must_fit_its_own_gpu_where_nobody_names_another(write):
    run = only_run(write("[runs.a]\nmodel='gpt2'\ngpu='a10g'\nlimits.fits = true\n"))
    assert [budget.gpu for budget in run.budgets] == [run.plan.gpu] == ["A10G"]


def test_a_pyproject_has_the_same_keys_below_its_section(write):
    path = write(
        '[project]\nname = "x"\n\n[tool.memcalc.runs.a]\nmodel = "gpt2"\n'
        'limits = { peak = "1 GiB" }\n',
        "pyproject.toml",
    )
    run = only_run(path)
    assert run.budgets[0].where.line == 6
    assert str(run.budgets[0].where) == "pyproject.toml:6"


def test_a_local_model_is_found_from_another_folder(write, tmp_path, monkeypatch):
    (tmp_path / "sub").mkdir()
    path = write('[runs.a]\nmodel = "./m/config.json"\nlimits = { peak = "1 GiB" }\n')
    assert only_run(path).plan.model == "./m/config.json"
    monkeypatch.chdir(tmp_path / "sub")
    assert only_run(path).plan.model == "../m/config.json"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("[runs.a]\nmodl = 'gpt2'\n", 2, "did you mean model"),
        ("[defaults]\nbatchs = 2\n[runs.a]\nmodel='gpt2'\n", 2, "did you mean batch"),
        ("[runs.a]\nmodel = 'gpt2'\n[runs.a.limits]\n\npeek = '1 GiB'\n", 5, "did you mean peak"),
        ("[runs.a]\nmodel='gpt2'\nlimits.peak.reservd = '1 GiB'\n", 3, "did you mean reserved"),
        ("[runs.a]\nmodel='gpt2'\nlimits.max_growth.weight='1%'\n", 3, "did you mean weights"),
        ("[runs.a]\nmodel='gpt2'\nlimits.peak = '5 GBit'\n", 3, "write a number and a unit"),
        ("[runs.a]\nmodel='gpt2'\nlimits.peak = 5\n", 3, "write a number and a unit"),
        ("[runs.a]\nmodel='gpt2'\nlimits.max_growth = '-1%'\n", 3, "percentage or a size"),
        ("[runs.a]\nmodel='gpt2'\nlimits.bytes_per_parameter = nan\n", 3, "not a number of bytes"),
        ("[runs.a]\nmodel='gpt2'\nlimits.fits = 't44'\n", 3, "Unknown GPU"),
        ("[runs.a]\nmodel='gpt2'\nlimits.fits = true\n", 3, "names no GPU"),
        ("[runs.a]\nmodel='gpt2'\ngpu='a100-40gb'\nlimits.fits = 't4'\n", 4, "name one of them"),
        ("[runs.a]\nmodel='gpt2'\nbatch = 0\n", 3, "whole number"),
        ("[runs.a]\nmodel='gpt2'\nprecision = 'fp23'\n", 3, "did you mean"),
        ("[runs.a]\nmodel='gpt2'\nmethod = 'guess'\n", 3, "trace, analytic"),
        ("[runs.a]\nmodel='gpt2'\n", 1, "has no limits"),
        ("[runs.a]\nmodel='gpt2'\nlimits = {}\n", 1, "has no limits"),
        ("[runs.a]\nmodel='gpt2'\nlimits = 3\n", 3, "is not a table"),
        ("[runs.a]\nmodel='gpt2'\nlimits.margin='1%'\n", 1, "has no limits"),
        ("[runs.a]\nlimits.peak = '1 GiB'\n", 1, "names no model"),
        ("[[run]]\nmodel='gpt2'\n", 1, "[runs.NAME]"),
        ("model = 'gpt2'\n", 1, "below [defaults] or [runs.NAME]"),
        ("[runs.a]\nmodel='gpt2'\npeak='1 GiB'\n", 3, "below [runs.a.limits]"),
        ("runs = 3\n", 1, "is not a table"),
        ("baseline = 3\n[runs.a]\n", 1, "not the name of a file"),
        ("", 1, "there are no budgets"),
        ("[defaults]\nbatch = 2\n", 1, "there are no budgets"),
        ('[runs."a\\nb"]\nmodel="gpt2"\n', 1, "no name for a run"),
        ("a = 1\n[runs\n", 2, "not valid TOML"),
        ("x = " + "9" * 5000, 1, "not valid TOML"),
        ("x = " + "[" * 5000, 1, "not valid TOML"),
        ("[runs.a]\nmodel='gpt2'\nlimits.peak = '" + "9" * 5000 + " B'\n", 3, "no size"),
    ],
)
def test_an_error_names_the_line_and_what_to_write(write, text, line, words):
    said = refused(write, text)
    assert said.startswith(f"memcalc.toml:{line}: "), said
    assert words in said
    assert len(said) < 600


def test_a_file_that_is_not_there_or_no_text_is_refused(write, tmp_path):
    with pytest.raises(UsageError, match="Cannot read"):
        read(tmp_path / "none.toml")
    write("")
    (tmp_path / "memcalc.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read(tmp_path / "memcalc.toml")


def test_a_pyproject_without_budgets_is_refused(write):
    assert "tool.memcalc" in refused(write, '[project]\nname = "x"\n', "pyproject.toml")


def test_the_nearest_file_is_found_but_not_outside_the_repository(write, tmp_path):
    write("", "memcalc.toml")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    assert discover(inner) == tmp_path / "memcalc.toml"
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.other]\n")
    assert discover(inner) == tmp_path / "memcalc.toml"
    (tmp_path / "a" / "pyproject.toml").write_text("[tool.memcalc]\n")
    assert discover(inner) == tmp_path / "a" / "pyproject.toml"
    (inner / ".git").mkdir()
    with pytest.raises(UsageError, match="memcalc init"):
        discover(inner)


VALUES = [
    "1", "-2.5e3", "true", "inf", "1979-05-27T07:32:00Z", '"a # no comment"', "'lit\\'",
    '"""one\nkey = 2\n[not.a.table]\n"""', "'''\nx = 1\n'''''", '"\\"]}"',
    "[1, [2, 3], # c = 1\n 4]",
    '["a]", "b"]', "[]", "{}", '{ in = 1, "q r".s = "}" }', "[{ a = 1 },\n{ a = 2 }]",
    '"""ends in a quote\\""""', '"""two at its end"""""',
]  # fmt: skip
KEYS = ["a", "b-c", '"quoted key"', "'#'", "a1.b2", '"dot.ted".x', "1", "e . f"]


@st.composite
def documents(draw):
    """Lines of TOML, and the line of each header and key as it was written."""
    lines, names = [], iter(range(10_000))
    for _ in range(draw(st.integers(0, 4))):
        for _ in range(draw(st.integers(0, 3))):
            lines.append(draw(st.sampled_from(["", "  # [x] = 1", "\t"])))
        header = draw(
            st.sampled_from(["", "[t{}]", '[ "t {}" . deep ]', "[[list]]", "[list2.x{}]"])
        )
        if header and not (not lines and draw(st.booleans())):
            lines.append(header.format(next(names)) + draw(st.sampled_from(["", " # c"])))
        for _ in range(draw(st.integers(0, 4))):
            key, value = draw(st.sampled_from(KEYS)), draw(st.sampled_from(VALUES))
            lines.append(f"{draw(st.sampled_from(['', '  ']))}k{next(names)}.{key} = {value}")
    return draw(st.sampled_from(["\n", "\r\n"])).join(lines)


def paths(value, path=()):
    for part in value if isinstance(value, list) else [value]:
        for key, item in part.items() if isinstance(part, dict) else ():
            yield (*path, key)
            yield from paths(item, (*path, key))


@given(documents())
def test_every_key_that_tomllib_finds_has_a_line_and_no_other_has(text):
    assert set(locate(text)) == set(paths(tomllib.loads(text)))


@given(documents())
def test_a_key_stands_on_the_line_that_is_said(text):
    lines = text.replace("\r\n", "\n").split("\n")
    for path, line in locate(text).items():
        if path[-1] != "a":  # In an array over several lines.
            assert path[-1].split(".")[0] in lines[line - 1], (path, line)


def test_an_unknown_key_has_the_line_of_what_is_around_it():
    source = Source(path="x", data={}, lines=locate("a = 1\n[t]\nb = 2\n"))
    found = [source.place(key).line for key in (("t", "b", "c"), ("t", "z"), ("nothing",))]
    assert found == [3, 2, 1]
