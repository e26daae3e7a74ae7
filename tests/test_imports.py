"""What errors of other people's code are told as."""

from memcalc.imports import line


def test_of_an_import_that_failed_by_another_the_other_is_told():
    missing = ModuleNotFoundError("No module named 'termcolor'")
    outer = ModuleNotFoundError("Could not import module 'LlamaConfig'.")
    outer.__cause__ = missing
    assert line(outer) == "No module named 'termcolor'"


def test_of_other_errors_their_own_words_are_told():
    error = ValueError("two\n lines.")
    error.__cause__ = KeyError("x")
    assert line(error) == "two lines"
    assert line(TypeError()) == "TypeError"
