"""What the loops declare, and what of it shows in a run."""

import json

import pytest

from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation.answers import Answers
from memcalc.records.fields import FIELDS
from memcalc.workload import loops


def plan(**settings):
    return make({"model": "gpt2", **settings})


def test_every_loop_in_the_room_can_be_asked_for():
    assert loops.names() == FIELDS["loop"].choices
    assert tuple(loops.find(name).name for name in loops.names()) == loops.names()


def test_an_unknown_loop_is_told_which_there_are():
    with pytest.raises(UsageError, match="plain, accelerate, trainer"):
        loops.find("trainr")


@pytest.mark.parametrize("field", ["keep_outputs", "set_to_none"])
def test_what_the_trainer_leaves_no_choice_in_is_refused(field):
    value = field == "keep_outputs"
    with pytest.raises(UsageError, match=f"no choice in {field}"):
        loops.of(plan(loop="trainer", **{field: value}))


TINY = {
    "d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64, "vocab_size": 99,
    "pad_token_id": 1, "eos_token_id": 2, "is_encoder_decoder": True,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "head"), [("bart", "Bart"), ("mbart", "MBart")])
def test_texts_that_an_encoder_decoder_classifies_end_and_are_no_padding(tmp_path, kind, head):
    architecture = f"{head}ForSequenceClassification"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**TINY, "model_type": kind, "architectures": [architecture]}))
    answers = Answers()
    traced = answers.trace(make({"model": str(config), "batch": 2, "seq": 16}))
    assert traced.prediction.peak.allocated > 0


GPT2 = {
    "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 64, "n_layer": 1,
    "n_head": 2, "vocab_size": 999,
}  # fmt: skip
RESNET = {
    "model_type": "resnet", "architectures": ["ResNetForImageClassification"], "image_size": 64,
    "depths": [1, 1], "hidden_sizes": [32, 64], "embedding_size": 16,
}  # fmt: skip


def answer(folder, config, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    answers = Answers()
    return answers.trace(make({"model": str(path), "batch": 2, **settings})).prediction


def test_the_trainer_schedules_an_optimizer_that_updates_in_backward(tmp_path):
    found = answer(tmp_path, GPT2, loop="trainer", optim_in_backward=True)
    assert found.components["optimizer_state"] > 7.9 * found.trainable
    peaks = {one.phase: one.allocated for one in found.phases}
    assert peaks["step"] <= peaks["backward"]


@pytest.mark.parametrize("settings", [{}, {"devices": 2, "parallel": "zero1"}])
def test_an_optimizer_that_wants_a_closure_is_refused_in_every_layout(tmp_path, settings):
    with pytest.raises(UsageError, match="needs a closure"):
        answer(tmp_path, GPT2, optim="lbfgs", **settings)


def test_evaluation_keeps_the_logits_that_a_loss_in_pieces_does_without(tmp_path):
    found = answer(tmp_path, GPT2, loss_chunks=4, eval=2, seq=256)
    logits = 2 * 256 * 999 * 4
    assert next(one for one in found.phases if one.phase == "eval").requested > 2 * logits


def test_images_have_the_type_of_weights_that_convolve_them(tmp_path):
    half = answer(tmp_path, RESNET, precision="bf16")
    assert half.components["inputs"] < 2 * 3 * 64 * 64 * 2 + 512
    assert "images are in bf16, because the model does not cast them" in half.assumptions
    mixed = answer(tmp_path, RESNET, precision="amp-bf16")
    assert mixed.components["inputs"] > 2 * 3 * 64 * 64 * 4
