"""What is recorded of feature extractors is what they make."""

import importlib
import json
import pathlib
import runpy

import pytest

from memcalc.catalog import architectures, audio

ROOT = pathlib.Path(__file__).parent.parent.parent
BY_DAY = ("whisper", "parakeet_ctc")


@pytest.mark.parametrize(
    "kind",
    [k if k in BY_DAY else pytest.param(k, marks=pytest.mark.nightly) for k in audio.table()],
)
def test_an_extractor_makes_what_is_recorded_of_it(kind):
    transformers = importlib.import_module("transformers")
    saved = json.loads((ROOT / "configs" / "sound.json").read_text())
    if saved["transformers"] != transformers.__version__:
        pytest.skip("recorded with another transformers")
    script = runpy.run_path(str(ROOT / "scripts" / "make_sound.py"))
    made = script["row"](kind)
    if made is None:
        pytest.skip("the extractor needs a package")
    assert made.inputs == audio.of(kind).inputs


def test_all_that_is_recorded_is_of_a_known_architecture_and_of_one_recording():
    assert set(audio.table()) <= set(architectures.table())
    for kind, one in audio.table().items():
        assert any(not tensor.mask for tensor in one.inputs.values()), kind
        assert all(length > 0 for t in one.inputs.values() for length in t.shape), kind
