"""Serving engines: their rules by hand, and against what their users' logs say."""

import json
import pathlib

import pytest

from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation.answers import Answers
from memcalc.estimation.estimate import answers, estimate
from memcalc.estimation.serving import sglang_rules as sglang
from memcalc.estimation.serving import vllm_rules as vllm
from memcalc.records.prediction import Prediction
from memcalc.records.serving import Layers
from memcalc.records.trace import Component
from memcalc.units import GIB
from tests.estimation.test_inference import A_TOKEN, BF16, LLAMA

READINGS = json.loads(pathlib.Path("evidence/serving/readings.json").read_text())
STARTED = json.loads(pathlib.Path("evidence/serving/started.json").read_text())
LLAMA_8B = (Layers(layers=32, bytes=2 * 8 * 128 * 2),)
FOUND = pytest.mark.parametrize(
    "reading",
    [r for r in READINGS if r["engine"] == "vllm"],
    ids=lambda reading: f"{reading['gpu']} {reading['engine_args'].get('max_model_len')}",
)


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    path = tmp_path_factory.mktemp("models") / "llama.json"
    path.write_text(json.dumps(LLAMA))
    return str(path)


@pytest.mark.parametrize(("kv_gib", "blocks"), [(3.81, 1952), (2.89, 1478)])
def test_blocks_of_published_logs_follow_from_the_published_bytes(kv_gib, blocks):
    groups = vllm.groups(LLAMA_8B, 16, 20000)
    # The log rounds to a hundredth of a GiB.
    ends = [vllm.capacity(groups, int((kv_gib + e) * GIB), 1, 20000, 256) for e in (-0.005, 0.005)]
    assert ends[0].blocks <= blocks <= ends[1].blocks


def test_sequences_of_a_published_log_follow_from_its_blocks():
    groups = vllm.groups(LLAMA_8B, 16, 20000)
    held = vllm.capacity(groups, 1952 * groups.block_bytes, 20000, 20000, 256)
    # "Maximum concurrency for 20000 tokens per request: 1.56x"
    assert (held.blocks, held.sequences) == (1952, 1)
    assert held.blocks / groups.blocks(20000) == pytest.approx(1.56, abs=0.005)


def test_cells_of_a_published_log_of_sglang_follow_from_the_shapes():
    (reading,) = (r for r in READINGS if r["engine"] == "sglang")
    kinds = (Layers(layers=48, bytes=2 * 4 * 128 * 2),)
    held = sglang.capacity(
        sglang.pools(kinds, {}), int(reading["log"]["kv_gib"] * GIB), 1, 40960, None
    )
    assert held.tokens == pytest.approx(reading["log"]["tokens"], rel=1e-4)


def test_layers_are_grouped_as_vllm_documents_it():
    # Its own example: 10 full and 20 with a window make three groups of 10.
    full, window = Layers(layers=10, bytes=64), Layers(layers=20, bytes=64, window=128)
    groups = vllm.groups((full, window), 16, 32)
    assert (groups.size, [count for _, count in groups.each]) == (10, [1, 2])
    # 100 blocks for the full layers; 127 + 2 x 32 tokens, and a block, for each of the others.
    assert groups.blocks(1600) == 100 + 2 * (12 + 1)
    # 12 and 13 are padded to 13 each, and make two groups.
    uneven = vllm.groups(
        (Layers(layers=13, bytes=64), Layers(layers=12, bytes=64, window=8)), 16, 32
    )
    assert (uneven.size, sum(count for _, count in uneven.each)) == (13, 2)


def test_the_longest_sequence_fits_and_one_more_does_not():
    groups = vllm.groups(
        (Layers(layers=2, bytes=64), Layers(layers=4, bytes=64, window=40)), 16, 32
    )
    held = vllm.capacity(groups, 100 * groups.block_bytes, 64, 1 << 20, 256)
    assert groups.blocks(held.longest) <= 100 < groups.blocks(held.longest + 1)


def test_the_share_of_sglang_by_hand():
    gpu = gpus.find("H100 SXM")
    mib = (gpu.nvml_memory or gpu.memory) / (1 << 20)
    captured = 8 + 14 + 8 + 8 + 12 + 8
    held = 512 + 8192 * 1.5 + 128 + 256 * 2 + captured * 8
    assert sglang.share({}, gpu) == round((mib - held) / mib, 3)
    assert sglang.share({"mem_fraction_static": 0.7}, gpu) == 0.7


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_token_takes_what_the_model_keeps_of_it(llama, engine):
    plan = {"model": llama, "engine": engine, "gpu": "A2", "generate": 8, "seq": 56, **BF16}
    found = estimate(plan.pop("model"), use_cache=False, **plan)
    serving = found.serving
    assert sum(kind.layers * kind.bytes for kind in serving.kinds) == A_TOKEN
    assert serving.length == 64
    assert serving.least.bytes <= serving.most.bytes < serving.budget
    low = serving.budget - sum(one.high for one in serving.taken)
    assert serving.least.bytes == low
    assert found.components[Component.KV_CACHE] == low
    assert found.peak.allocated is None
    assert "was not run" in found.unknown["allocated"]
    # 64 tokens are four blocks of 16, or 64 pages of one.
    assert serving.most.sequences == serving.most.blocks // (64 // serving.block)


def test_windows_latents_and_types_of_the_cache(tmp_path):
    plans = []
    for name, more in {
        "mla": {
            "model_type": "deepseek_v3",
            "kv_lora_rank": 32,
            "q_lora_rank": 32,
            "qk_rope_head_dim": 16,
            "qk_nope_head_dim": 16,
            "v_head_dim": 16,
            "first_k_dense_replace": 3,
            "num_key_value_heads": 8,
        },
        "window": {"model_type": "mistral", "sliding_window": 64},
    }.items():
        (tmp_path / f"{name}.json").write_text(json.dumps({**LLAMA, **more}))
        settings = {"engine": "vllm", "gpu": "A2", "inference": True, "seq": 128, **BF16}
        settings["engine_args"] = {"kv_cache_dtype": "fp8"} if name == "window" else {}
        plans.append(make({"model": str(tmp_path / f"{name}.json"), **settings}))
    mla, window = answers(plans, use_cache=False)
    assert isinstance(mla, Prediction), mla
    assert isinstance(window, Prediction), window
    assert [(k.layers, k.bytes, k.window) for k in mla.serving.kinds] == [(3, (32 + 16) * 2, None)]
    assert [(k.layers, k.bytes, k.window) for k in window.serving.kinds] == [
        (3, 2 * 2 * 32 * 1, 64)
    ]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gpu": None}, "name the GPU, such as --gpu"),
        ({"engine_args": {"mem_fraction": 0.5}}, "not one that memcalc reads"),
        ({"engine_args": {"gpu_memory_utilization": 1.5}}, "is not a share from 0.01 to 1"),
        ({"engine_args": {"max_num_seqs": "many"}}, "is not a whole number from 1"),
        ({"engine_args": {"gpu_memory_utilization": 0.01}}, "would not start on A2"),
        ({"seq": 8000}, "takes sequences of 4,096 tokens"),
        ({"precision": "amp-bf16"}, "--precision bf16"),
        ({"gpu": "T4"}, "does not start in bf16 on T4: type --precision fp16"),
        ({"engine": None, "engine_args": {"max_num_seqs": 4}}, "needs engine"),
        ({"engine": None, "generate": None, "vllm": "0.33"}, "add --engine vllm"),
        ({"beams": 2}, "no beams"),
    ],
)
def test_what_an_engine_cannot_do_is_refused_in_a_sentence(llama, settings, words):
    plan = {"engine": "vllm", "gpu": "A2", "generate": 8, **BF16, **settings}
    with pytest.raises(UsageError, match=words):
        estimate(llama, use_cache=False, **plan)


def test_layers_of_several_sizes_are_refused():
    with pytest.raises(EstimateError, match="different sizes"):
        vllm.groups((Layers(layers=1, bytes=64), Layers(layers=1, bytes=128)), 16, 32)


def test_an_engine_serves_in_16_bits_unless_told_otherwise(llama):
    plan = {"model": llama, "engine": "vllm"}
    assert [make({**plan, "gpu": gpu}).precision for gpu in ("A2", "t4")] == ["bf16", "fp16"]
    assert make({**plan, "gpu": "t4", "precision": "fp32"}).precision == "fp32"


def test_only_estimate_answers_for_an_engine(llama):
    plan = make({"model": llama, "engine": "vllm", "gpu": "A2", "generate": 8, **BF16})
    with pytest.raises(UsageError, match="leave out engine"):
        Answers(use_cache=False).trace(plan)


def served(model, **settings):
    return estimate(model, engine="vllm", precision="bf16", seq=64, generate=64, **settings).serving


def taken(serving, name):
    return next(one for one in serving.taken if one.name == name)


def test_gpus_of_tensor_parallel_divide_weights_and_cache(llama):
    one, two = (served(llama, gpu="a2", devices=count) for count in (1, 2))
    # Norms are whole on each.
    assert 0.5 <= taken(two, "weights").low / taken(one, "weights").low < 0.51
    assert [kind.bytes * 2 for kind in two.kinds] == [kind.bytes for kind in one.kinds]
    assert taken(two, "buffers of NCCL").high > 0


def test_what_the_sampler_holds_widens_what_a_pass_does(llama):
    held = taken(served(llama, gpu="a2"), "activations")
    assert held.low < held.high


@pytest.mark.parametrize(("gpu", "advised"), [("t4", False), ("l4", True)])
def test_a_share_is_advised_only_where_one_is_enough(gpu, advised):
    with pytest.raises(UsageError) as refused:
        served("llama-3.1-8b", gpu=gpu, engine_args={"gpu_memory_utilization": 0.6})
    assert ("raise --engine-arg" in str(refused.value)) is advised


def test_a_model_that_sees_is_built_whole_and_refused_for_engines(tmp_path):
    vision = {
        "depth": 2, "hidden_size": 64, "num_heads": 2, "intermediate_size": 128,
        "out_hidden_size": 64,
    }  # fmt: skip
    text = {**LLAMA, "model_type": "qwen2_5_vl_text"}
    text |= {"rope_scaling": {"type": "mrope", "mrope_section": [4, 6, 6]}}
    path = tmp_path / "config.json"
    path.write_text(
        json.dumps(
            {
                "model_type": "qwen2_5_vl",
                "architectures": ["Qwen2_5_VLForConditionalGeneration"],
                "vision_config": vision,
                "text_config": text,
            }
        )
    )
    found = estimate(str(path), precision="bf16", batch=1, seq=32)
    assert found.head == "Qwen2_5_VLForConditionalGeneration"
    assert any("text only" in note for note in found.assumptions)
    with pytest.raises(UsageError, match="takes more than text"):
        served(str(path), gpu="a2")


@pytest.mark.nightly
@FOUND
def test_published_logs_are_met_within_four_percent(reading):
    settings = {key: reading[key] for key in ("engine", "engine_args", "gpu", "precision")}
    found = estimate(reading["model"], use_cache=False, generate=1, **settings).serving
    log = reading["log"]
    if "weights_gib" in log:
        # The log counts the tables of rotary positions too.
        assert found.taken[0].low / GIB == pytest.approx(log["weights_gib"], rel=0.003)
    for field, unit in (("kv_gib", GIB), ("blocks", 1)):
        if field in log:
            ends = (found.least, found.most)
            read = [end.bytes if field == "kv_gib" else end.blocks for end in ends]
            assert sum(read) / 2 / unit == pytest.approx(log[field], rel=0.04)


@pytest.mark.nightly
@pytest.mark.parametrize("start", [one for one in STARTED if one["engine"] == "sglang"])
def test_the_rules_hold_what_sglang_itself_said(start):
    settings = {key: start[key] for key in ("engine", "engine_args", "gpu", "precision")}
    found = estimate(start["model"], use_cache=False, generate=1, **settings).serving
    assert found.share == start["log"]["share"]
    assert found.least.tokens <= start["log"]["tokens"] <= found.most.tokens
