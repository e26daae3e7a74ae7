"""Models that run without being trained: one pass, or tokens generated one by one."""

import json

import pytest

from memcalc.catalog.plan import make
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.estimate import estimate
from memcalc.files import extras
from memcalc.records.trace import Component, Phase

LLAMA = {
    "model_type": "llama",
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
    "max_position_embeddings": 4096,
}
A_TOKEN = 2 * 3 * 2 * 32 * 2
"""Bytes of keys and values of one token of LLAMA in bf16: both, layers, heads, head size, type."""


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


@pytest.fixture(scope="module")
def answers():
    return Answers(use_cache=False)


def held(trace, component):
    """The most bytes of one component that live at once at the end of a pass."""
    return [
        sum(
            storage.bytes
            for number, storage in enumerate(trace.storages)
            if storage.component is component
            and number in set(trace.events[:end])
            and ~number not in set(trace.events[:end])
        )
        for end in [mark.index for mark in trace.marks[1:]]
    ]


def test_each_pass_adds_the_keys_and_values_of_a_token(llama, answers):
    found = answers.trace(make({"model": llama, "batch": 3, "seq": 20, "generate": 5, **BF16}))
    kept = held(found.trace, Component.KV_CACHE)
    # At the end of load, prefill and three of four passes; what the last leaves, dies with it.
    assert kept == [0, *(3 * A_TOKEN * (20 + passes) for passes in range(4))]
    phases = [phase.phase for phase in found.prediction.phases]
    assert phases == [Phase.LOAD, Phase.PREFILL, Phase.DECODE]
    assert found.prediction.components[Component.GRADIENTS] == 0
    assert found.prediction.components[Component.OPTIMIZER_STATE] == 0


def test_a_static_cache_has_its_places_from_the_first_pass_on(llama, answers):
    plan = {"model": llama, "seq": 20, "generate": 5, "cache": "static", "batch": 2, **BF16}
    kept = held(answers.trace(make(plan)).trace, Component.KV_CACHE)
    places = 20 + 5 - 1
    assert kept[1] == pytest.approx(2 * A_TOKEN * places, abs=64)
    assert len(set(kept[1:])) == 1


def test_every_beam_has_a_cache(llama, answers):
    plan = {"model": llama, "seq": 20, "generate": 4, "batch": 2, **BF16}
    one, four = (
        held(answers.trace(make({**plan, "beams": beams})).trace, Component.KV_CACHE)
        for beams in (1, 4)
    )
    assert four[2] >= 4 * one[2]


def test_one_forward_pass_keeps_nothing_for_a_backward(llama, answers):
    found = answers.trace(make({"model": llama, "seq": 20, "inference": True, **BF16}))
    assert [phase.phase for phase in found.prediction.phases] == [Phase.LOAD, Phase.FORWARD]
    assert found.prediction.components[Component.ACTIVATIONS] == 0


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"generate": 4, "cache": "sliding"}, "no sliding window"),
        ({"generate": 4, "cache": "offloaded", "target": "cpu"}, "leaves a GPU"),
        ({"generate": 4, "grad_accum": 2}, "leave out grad_accum"),
        ({"generate": 4, "devices": 2}, "one GPU"),
        ({"generate": 4, "quant": "nf4", "kbit_prepare": False}, "leave out kbit_prepare"),
        ({"generate": 4, "quant": "nf4", "engine": "vllm", "gpu": "l40s"}, "leave quant out"),
        ({"cache": "static"}, "needs --generate"),
        ({"inference": True, "beams": 2}, "--generate N"),
    ],
)
def test_what_cannot_run_is_refused_with_its_reason(llama, settings, words):
    with pytest.raises(UsageError, match=words):
        estimate(llama, use_cache=False, **settings)


@pytest.mark.parametrize(
    ("cache", "package"), [("quantized", "optimum-quanto"), ("quantized-hqq", "hqq")]
)
def test_a_cache_without_its_package_is_refused(llama, monkeypatch, cache, package):
    monkeypatch.setattr(extras, "can_import", lambda module: False)
    with pytest.raises(UsageError, match=f"pip install {package}"):
        estimate(llama, use_cache=False, generate=4, cache=cache)


def test_a_cache_that_transformers_does_not_have_for_a_model_is_refused_in_a_sentence(tmp_path):
    config = {"model_type": "mistral", "hidden_size": 64, "num_hidden_layers": 2}
    path = tmp_path / "mistral.json"
    path.write_text(json.dumps({**config, "num_attention_heads": 2, "sliding_window": 8}))
    with pytest.raises(EstimateError, match=r"the cache quantized-fp8: .* Name another --cache"):
        estimate(str(path), use_cache=False, generate=4, cache="quantized-fp8")
    with pytest.raises(UsageError, match="offloads no layer with a sliding window"):
        estimate(str(path), use_cache=False, generate=4, cache="offloaded-static")


def test_a_long_generation_holds_the_cache_of_all_its_tokens_but_the_last(llama, answers):
    found = answers.trace(make({"model": llama, "batch": 2, "seq": 100, "generate": 60, **BF16}))
    assert max(held(found.trace, Component.KV_CACHE)) >= 2 * A_TOKEN * (100 + 60 - 2)
    assert found.prediction.phases[-1].phase is Phase.DECODE


def test_an_offloaded_cache_is_a_layer_and_the_next_on_the_gpu_and_the_rest_on_the_host(llama):
    plan = {"model": llama, "seq": 100, "generate": 20, "batch": 4, **BF16}
    here, there = (
        estimate(use_cache=False, cache=cache, **plan) for cache in ("dynamic", "offloaded")
    )
    most = {one.phase: one.requested for one in there.phases}
    assert most[Phase.DECODE] < {one.phase: one.requested for one in here.phases}[Phase.DECODE]
    (said,) = (note for note in there.assumptions if "pinned host memory" in note)
    # The pass leaves one of the three layers on the GPU.
    assert said.startswith(f"{A_TOKEN * 4 * (100 + 20 - 1) * 2 // 3:,} bytes")


def test_more_tokens_than_a_model_has_positions_for_are_refused():
    with pytest.raises(UsageError, match="type --generate 513 or less"):
        estimate("gpt2", use_cache=False, generate=1000, seq=512)


def test_a_model_of_speech_generates_in_half_precision_from_sound_in_its_own(tmp_path):
    config = {
        "model_type": "whisper",
        "d_model": 64,
        **{f"{part}_layers": 2 for part in ("encoder", "decoder")},
        **{f"{part}_attention_heads": 4 for part in ("encoder", "decoder")},
        **{f"{part}_ffn_dim": 128 for part in ("encoder", "decoder")},
        "vocab_size": 256,
        # Not the token that zeros lead to: Whisper cuts padding off what it generated.
        "pad_token_id": 255,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "decoder_start_token_id": 1,
    }
    path = tmp_path / "whisper.json"
    path.write_text(json.dumps(config))
    plan = make({"model": str(path), "precision": "bf16", "batch": 2, "generate": 4})
    answers = Answers(use_cache=False)
    found = answers.trace(plan)
    sound = [s.bytes for s in found.trace.storages if s.component is Component.INPUTS]
    assert max(sound) == 2 * 80 * 3000 * 2


def test_a_model_that_writes_no_text_is_refused(tmp_path):
    bert = {"model_type": "bert", "num_hidden_layers": 1, "hidden_size": 64}
    bert |= {"num_attention_heads": 2, "intermediate_size": 64}
    (tmp_path / "bert.json").write_text(json.dumps(bert))
    with pytest.raises(UsageError, match="--inference"):
        estimate(str(tmp_path / "bert.json"), generate=4, use_cache=False)


def test_a_model_that_reads_images_is_built_whole_and_generates_from_text(tmp_path):
    eye = {"model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 1}
    eye |= {"num_attention_heads": 2, "intermediate_size": 32, "image_size": 28, "patch_size": 14}
    config = {"model_type": "llava", "text_config": LLAMA, "vision_config": eye}
    (tmp_path / "llava.json").write_text(json.dumps(config))
    answer = estimate(str(tmp_path / "llava.json"), generate=4, use_cache=False)
    assert answer.components[Component.KV_CACHE] > 0
    assert any("no images" in one for one in answer.assumptions)


BF16 = {"precision": "bf16"}


def test_adapters_around_a_model_that_generates_change_nothing_of_its_cache(small_model):
    asked = {"generate": 4, "batch": 2, "seq": 16}
    bare = estimate(small_model, **asked)
    adapted = estimate(small_model, lora="r=4", **asked)
    assert adapted.components[Component.KV_CACHE] == bare.components[Component.KV_CACHE] > 0
    assert [one.phase for one in adapted.phases] == [one.phase for one in bare.phases]


def test_a_base_in_4_bit_generates_unprepared_and_without_adapters(llama, answers):
    asked = {"model": llama, "batch": 1, "seq": 20, "generate": 5, "quant": "nf4-dq", **BF16}
    found = answers.trace(make(asked))
    phases = [phase.phase for phase in found.prediction.phases]
    assert phases == [Phase.LOAD, Phase.PREFILL, Phase.DECODE]
    kept = held(found.trace, Component.KV_CACHE)
    assert kept == [0, *(A_TOKEN * (20 + passes) for passes in range(4))]
    inventory = found.trace.inventory
    assert {tensor.dtype for tensor in inventory.parameters} == {"uint8", "bfloat16"}
    assert not any("lora" in tensor.name for tensor in inventory.tensors)
    size = sum(tensor.bytes for tensor in inventory.tensors if not tensor.buffer)
    said = " ".join(found.prediction.assumptions)
    assert f"exceeds the weights beyond {-(-size // A_TOKEN):,} tokens" in said
    assert "linear layers are quantized" in said


def test_adapters_on_a_base_in_4_bit_are_attached_after_loading(llama, answers):
    asked = {"model": llama, "batch": 1, "seq": 20, "generate": 5, "quant": "nf4-dq", **BF16}
    found = answers.trace(make({**asked, "lora": "r=4"}))
    phases = [phase.phase for phase in found.prediction.phases]
    assert phases == [Phase.LOAD, Phase.PREPARE, Phase.PREFILL, Phase.DECODE]
    assert any("lora" in tensor.name for tensor in found.trace.inventory.tensors)


def test_a_setting_of_quantized_bases_is_refused_where_nothing_is_quantized(small_model):
    with pytest.raises(UsageError, match="add quant"):
        estimate(small_model, kbit_prepare=False)
