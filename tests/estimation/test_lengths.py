"""Batches of varying length are run one after the other, and drawn the same every time."""

import json

import pytest

import memcalc
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.engine import engine
from memcalc.estimation.estimate import answers
from memcalc.estimation.lengths import run_varying_lengths, samples


@pytest.fixture(scope="module")
def plan(small_model):
    return make({"model": small_model, "batch": 2, "seq": 64, "gpu": "t4"})


def test_batches_of_one_length_reserve_what_the_estimate_says(plan):
    (answer,) = answers([plan], use_cache=False)
    found = engine.predict(plan, lengths=[64] * 4).peak
    assert (found.allocated, found.reserved) == (answer.peak.allocated, answer.peak.reserved)


def test_every_batch_of_another_length_counts(plan):
    longest, first, last = (
        engine.predict(plan, lengths=lengths).peak
        for lengths in ([64] * 3, [64, 16, 8], [8, 16, 64])
    )
    assert first.requested <= longest.requested
    assert last.requested == longest.requested


@pytest.mark.nightly
def test_a_hundred_batches_take_no_less_than_the_largest_alone(plan):
    found = run_varying_lengths(plan, "uniform:8,64")
    drawn, bucketed, expandable = found.ways
    assert (found.batches, found.longest) == (100, 64)
    assert found.least < drawn.allocated <= found.most <= drawn.reserved
    assert expandable.reserved <= drawn.reserved
    assert bucketed.shortest < drawn.shortest


@pytest.mark.parametrize(
    "text",
    [
        *("normal:nan,1", f"normal:{'9' * 400},1", "uniform:\u0664,9", "uniform:9,4", "n" * 300),
        *("", ".", "uniform:1e400,2", "normal:1", "gauss:3,4", "nowhere.txt"),
    ],
)
def test_what_are_no_lengths_is_refused(text):
    with pytest.raises(UsageError, match="--lengths"):
        samples(text, 5, None)


@pytest.mark.parametrize("line", ["0", "-3", "9" * 30, "9" * 5000, "\u0664", "\u00b2", "1.5", "x"])
def test_a_line_that_is_no_length_is_refused(tmp_path, line):
    file = tmp_path / "lengths.txt"
    file.write_text(f"7\n{line}\n", encoding="utf-8")
    with pytest.raises(UsageError, match="one whole number of tokens a line"):
        samples(str(file), 5, None)


def test_lengths_are_drawn_the_same_every_time(tmp_path):
    for text in ("normal:100,30", "uniform:5,9"):
        assert samples(text, 50, None) == samples(text, 50, None)
    assert set(samples("uniform:5,9", 200, None)) <= set(range(5, 10))
    assert max(samples("normal:100,30", 200, 110)) == 110
    file = tmp_path / "lengths.txt"
    file.write_text("7\n9\n")
    assert set(samples(str(file), 50, None)) == {7, 9}


@pytest.fixture
def of_images(tmp_path):
    config = {"model_type": "resnet", "architectures": ["ResNetForImageClassification"]}
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 8], "depths": [1, 1], "layer_type": "basic"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, **sizes}))
    return {"model": str(path), "batch": 1, "gpu": "t4"}


def test_a_model_of_images_takes_no_lengths(of_images):
    with pytest.raises(UsageError, match="takes no tokens"):
        run_varying_lengths(make(of_images), "uniform:8,64")


@pytest.fixture
def of_captions(tmp_path):
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    part = {"num_hidden_layers": 1, "patch_size": 8, "image_size": 16, **sizes}
    config = {"model_type": "siglip", "architectures": ["SiglipForImageClassification"]}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**config, "vision_config": part, "text_config": sizes}))
    return {"model": str(path), "task": "image-classification", "batch": 1, "gpu": "t4"}


# Another part of the second model ends at as many tokens.
@pytest.mark.parametrize("images", ["of_images", "of_captions"])
def test_tokens_that_a_model_does_not_take_are_said_to_change_nothing(request, images):
    found = memcalc.estimate(**request.getfixturevalue(images), seq=64)
    assert "the model takes no tokens: --seq 64 changes nothing" in found.assumptions
