"""How many tokens a model takes is read from its config as the model itself takes them."""

import importlib
import json
import runpy

import pytest
import torch
import transformers

from memcalc.catalog import architectures, audio, models
from memcalc.catalog.positions import lengths
from memcalc.estimation.estimate import estimate
from tests.conftest import ROOT

SMALL = {"hidden_size": 32, "num_attention_heads": 2, "vocab_size": 64, "intermediate_size": 32,
         "num_hidden_layers": 1}  # fmt: skip
GPT = {
    "n_embd": 32,
    "n_head": 2,
    "n_layer": 1,
    "vocab_size": 64,
    "bos_token_id": 1,
    "eos_token_id": 1,
}
ENDING = [
    ("BertForMaskedLM", {**SMALL, "max_position_embeddings": 24}, 24),
    ("RobertaForMaskedLM", {**SMALL, "max_position_embeddings": 24, "pad_token_id": 1}, 22),
    ("RobertaForMaskedLM", {**SMALL, "max_position_embeddings": 24, "pad_token_id": 3}, 20),
    ("GPT2LMHeadModel", {**GPT, "n_positions": 24}, 24),
    ("GPTJForCausalLM", {**GPT, "n_positions": 24, "rotary_dim": 8}, 24),
    ("OPTForCausalLM", {**SMALL, "ffn_dim": 32, "word_embed_proj_dim": 32,
                        "max_position_embeddings": 24}, 24),
    ("MptForCausalLM", {"d_model": 32, "n_heads": 2, "n_layers": 1, "vocab_size": 64,
                        "max_seq_len": 24}, 24),
    ("LEDForConditionalGeneration", {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1,
        "vocab_size": 64, "encoder_attention_heads": 2, "decoder_attention_heads": 2,
        "attention_window": 4, "max_encoder_position_embeddings": 48,
        "max_decoder_position_embeddings": 24}, 24),
]  # fmt: skip
ENDLESS = [
    ("LlamaForCausalLM", {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 24}),
    ("ModernBertForMaskedLM", {**SMALL, "max_position_embeddings": 24, "pad_token_id": 0}),
    ("GPTNeoXForCausalLM", {**SMALL, "max_position_embeddings": 24}),
    ("T5ForConditionalGeneration", {"d_model": 32, "num_layers": 1, "num_heads": 2, "d_kv": 16,
                                    "vocab_size": 64, "d_ff": 32, "n_positions": 24,
                                    "decoder_start_token_id": 0}),
]  # fmt: skip


def takes(name: str, settings: dict, tokens: int) -> bool:
    cls = getattr(transformers, name)
    model = cls(cls.config_class(**settings)).eval()
    ids = torch.full((1, tokens), 5)
    more = {"labels": ids} if "Conditional" in name else {}
    try:
        with torch.no_grad():
            model(input_ids=ids, **more)
    except (IndexError, RuntimeError):
        return False
    return True


def config_of(name: str, settings: dict) -> dict:
    return {"model_type": getattr(transformers, name).config_class.model_type, **settings}


@pytest.mark.parametrize(("name", "settings", "longest"), ENDING)
def test_a_table_of_positions_ends(name, settings, longest):
    assert lengths(config_of(name, settings)).longest == longest
    assert takes(name, settings, longest)
    assert not takes(name, settings, longest + 1)


@pytest.mark.parametrize(("name", "settings"), ENDLESS)
def test_rotary_and_relative_positions_do_not_end(name, settings):
    known = lengths(config_of(name, settings))
    assert known.longest is None
    assert known.named == 24
    assert takes(name, settings, 48)


def test_the_text_part_of_a_model_for_images_decides():
    assert lengths({"model_type": "llava", "text_config": {"model_type": "llama"}}).longest is None
    clip = {"model_type": "clip", "text_config": {"max_position_embeddings": 77}}
    assert lengths(clip).longest == 77
    assert lengths({**clip, "text_config": {}}).longest == 77


def test_some_models_take_one_length_only():
    assert lengths({"model_type": "reformer", "axial_pos_shape": [4, 8]}).exact == 32
    assert lengths({"model_type": "reformer", "axial_pos_embds": False}).exact is None
    refused = lengths({"model_type": "perceiver"}).refusal("perceiver", 512)
    assert refused == "perceiver takes exactly 2048 tokens: type --seq 2048."


def test_more_tokens_than_a_config_names_are_an_assumption_of_the_answer():
    source = models.find("HuggingFaceTB/SmolLM2-135M")
    named = source.config["max_position_embeddings"]
    for seq, said in ((named, 0), (named + 1, 1)):
        answer = estimate(source.name, seq=seq, method="analytic")
        assert sum(f"names {named} positions" in note for note in answer.assumptions) == said


def test_every_bundled_model_has_a_default_that_it_takes():
    for name in models.list_bundled_files():
        known = lengths(models.find(name).config)
        assert known.refusal(name, known.default) is None


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
    made = runpy.run_path(str(ROOT / "scripts" / "make_sound.py"))["row"](kind)
    if made is None:
        pytest.skip("the extractor needs a package")
    assert made.inputs == audio.find_recording(kind).inputs


def test_all_that_is_recorded_is_of_a_known_architecture_and_of_one_recording():
    assert set(audio.table()) <= set(architectures.table())
    for kind, one in audio.table().items():
        assert any(not tensor.mask for tensor in one.inputs.values()), kind
        assert all(length > 0 for t in one.inputs.values() for length in t.shape), kind
