"""The line of progress counts seconds, and Ctrl-C keeps what is known."""

import pytest

from memcalc.cli.progress import Steps


def test_after_ctrl_c_the_last_answer_that_was_seen_stands():
    def find(seen):
        seen("one")
        seen("two")
        raise KeyboardInterrupt

    seen = []
    steps = Steps("")
    steps.row = seen.append
    assert steps.answer_until_stopped(find, lambda answer: ("first", answer)) == ("two", True)
    assert seen == ["first", "one", "two"]


def test_ctrl_c_before_anything_is_known_is_an_interruption():
    def find(seen):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Steps("").answer_until_stopped(find, str)


def test_how_many_answers_are_known_is_said_where_they_are_counted():
    steps = Steps("suggesting")
    assert steps.known == ""
    steps.at(2, 5)
    assert steps.known == ", 2 of 5"
