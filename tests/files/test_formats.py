"""One table of formats: every verb takes names and extensions from it."""

from pathlib import Path

import pytest

from memcalc.cli.output import FORMATS, chosen, formats
from memcalc.errors import UsageError

KINDS = sorted({kind for one in FORMATS.values() for kind in one.kinds.split()})


@pytest.mark.parametrize("kind", KINDS)
def test_every_format_is_found_by_its_name_and_by_its_extension(kind):
    for name in formats(kind):
        assert chosen(kind, name) == name
        extension = FORMATS[name].extension
        if extension:
            assert chosen(kind, None, Path(f"report{extension.upper()}")) == name


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_kind_of_answer_is_not_written_as_is_refused_with_what_it_is(kind):
    for name in set(FORMATS) - set(formats(kind)):
        with pytest.raises(UsageError, match=formats(kind)[-1]):
            chosen(kind, name)
    with pytest.raises(UsageError, match=r"let its name end in \."):
        chosen(kind, None, Path("report"))


def test_a_name_wins_over_an_extension_and_the_screen_shows_a_table():
    assert chosen("fit", "json", Path("a.md")) == "json"
    assert chosen("fit", None) == "table"


def test_every_format_of_predictions_and_checks_is_written(tmp_path):
    from memcalc import estimate
    from memcalc.budgets.formats import writers
    from memcalc.budgets.records import Report
    from memcalc.cli.output import deliver_predictions

    prediction = estimate("gpt2", method="analytic")
    for name in formats("predictions"):
        deliver_predictions([prediction], name, tmp_path / name)
    texts = {path.read_text() for path in tmp_path.iterdir()}
    assert len(texts) == len(formats("predictions"))
    empty = Report(verdicts=())
    made = {name: write() for name, write in writers(empty, 0).items()}
    assert {"table", *made} == set(formats("check"))
    assert len(set(made.values())) == len(made)
