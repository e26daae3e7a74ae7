"""A small GPT-2, traced and explained once for all tests that look at explanations."""

import json

import pytest

from memcalc.advice.explain.explain import explain
from memcalc.advice.remedies.records import figures
from memcalc.catalog import models
from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from memcalc.files import artifact

SMALL = {"n_layer": 3, "n_embd": 64, "n_head": 2, "vocab_size": 5000}


@pytest.fixture(scope="session")
def small_model(shared):
    config = {
        **json.loads(models.list_bundled_files()["openai-community/gpt2"].read_text()),
        **SMALL,
    }
    path = shared / "gpt2.json"
    # Whole at any time: each worker writes it, and others read it meanwhile.
    artifact.put(path, json.dumps(config).encode())
    return str(path)


@pytest.fixture(scope="session")
def settings():
    return {"batch": 4, "seq": 64, "gpu": "t4"}


@pytest.fixture(scope="session")
def cached(shared):
    """The cache with what is traced once."""
    return shared / "cache"


@pytest.fixture(scope="session")
def traced(small_model, settings, once):
    with once("traced"):
        answers = Answers()
        return answers.trace(make({"model": small_model, **settings}))


@pytest.fixture(scope="session")
def explained(small_model, settings, traced, once):
    """With a search for a plan that reserves a third less."""
    before = figures(traced.prediction)
    limit = before.needed - before.peak.reserved // 3
    with once("explained"):
        return explain(small_model, under=limit, **settings)
