"""The line of progress counts seconds, and Ctrl-C keeps what is known."""

import pytest

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
