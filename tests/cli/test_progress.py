"""The line of progress counts seconds, and Ctrl-C keeps what is known."""

import time

import pytest

from memcalc.cli import progress
from memcalc.cli.progress import Steps


class _Listing(Steps):
    """Steps that keep the rows they are told to show."""

    def __init__(self) -> None:
        super().__init__("")
        self.rows: list[str] = []

    def row(self, text: str) -> None:
        self.rows.append(text)


def test_after_ctrl_c_the_last_answer_that_was_seen_stands_and_no_row_is_shown_twice():
    def find(seen):
        seen(["one"])
        seen(["one", "two"])
        raise KeyboardInterrupt

    steps = _Listing()
    assert steps.answer_until_stopped(find, list, total=3) == (["one", "two"], True)
    assert (steps.rows, steps.known) == (["one", "two"], ", 2 of 3")


def test_ctrl_c_before_anything_is_known_is_an_interruption():
    def find(seen):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Steps("").answer_until_stopped(find, list)


def test_how_many_answers_are_known_is_said_where_they_are_counted():
    steps = Steps("suggesting")
    assert steps.known == ""
    steps.at(2, 5)
    assert steps.known == ", 2 of 5"


def test_a_line_in_a_log_has_the_newest_part_of_the_answer(capsys, monkeypatch):
    monkeypatch.setattr(progress, "EVERY", 0.01)
    with progress.progress("suggesting") as steps:
        steps.at(1, 5)
        steps.row("full: 3.0 GiB on T4")
        deadline = time.monotonic() + 10
        while "T4" not in (said := capsys.readouterr().err) and time.monotonic() < deadline:
            time.sleep(0.01)
    assert "suggesting: 0 s, 1 of 5; full: 3.0 GiB on T4" in said
