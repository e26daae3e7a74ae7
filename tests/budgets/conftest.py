"""Budget files of a small run, written where a test stands."""

import pytest

from memcalc.budgets import collect

RUN = '[runs.{name}]\nmodel = "distilbert-base-cased"\nmethod = "analytic"\nbatch = 2\nseq = 32\n'


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Write a budget file in an empty folder that is the current one; the path is relative."""
    monkeypatch.chdir(tmp_path)

    def to(text: str, name: str = "memcalc.toml"):
        (tmp_path / name).write_text(text, encoding="utf-8")
        return tmp_path / name

    return to


@pytest.fixture
def small():
    """The text of a run that closed forms answer at once, with the limits given."""

    def text(limits: str = 'peak = "8 GiB"', name: str = "small", more: str = "") -> str:
        return f"{RUN.format(name=name)}{more}\n[runs.{name}.limits]\n{limits}\n"

    return text


@pytest.fixture
def question():
    return collect.Question(use_cache=False, workers=1)
