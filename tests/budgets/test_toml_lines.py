"""Lines of TOML keys, held against tomllib, which knows the keys but not the lines."""

import tomllib

from hypothesis import given
from hypothesis import strategies as st

from memcalc.budgets.source import Source, locate

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
    found = [source.where(key).line for key in (("t", "b", "c"), ("t", "z"), ("nothing",))]
    assert found == [3, 2, 1]


def test_a_table_keeps_the_line_it_was_first_named_on():
    lines = locate("[runs.a]\nx = 1\n\n[runs.a.limits]\npeak = '1 B'\n")
    assert lines["runs", "a"] == 1
    assert lines["runs", "a", "limits"] == 4
    assert lines["runs", "a", "limits", "peak"] == 5
