"""One process as one rank of many: what wrappers take, what is sent, which rank is told of."""

import json

import pytest

import memcalc
from memcalc.engine.packages import dtensor
from memcalc.errors import EstimateError, UsageError
from memcalc.records.trace import Component

MODEL = "distilbert-base-cased"
PARAMETERS = 65_783_042


def estimate(**settings):
    return memcalc.estimate(MODEL, batch=2, seq=64, gpu="A100-80GB", **settings)


def test_ddp_holds_a_bucket_for_each_gradient_and_reduces_all_of_them():
    found = estimate(devices=2)
    assert found.components[Component.COMMUNICATION] >= 4 * PARAMETERS
    sent = {(one.collective, one.ranks): one for one in found.sent}
    assert sent["all-reduce", 2].bytes == 4 * PARAMETERS


def test_fsdp2_holds_a_share_and_gathers_blocks():
    found = estimate(devices=2, parallel="fsdp2")
    alone = estimate()
    weights = found.components[Component.WEIGHTS]
    assert weights == pytest.approx(alone.components[Component.WEIGHTS] / 2, rel=0.01)
    assert {one.collective for one in found.sent} >= {"all-gather", "reduce-scatter"}


def test_zero1_broadcasts_what_each_rank_has_updated():
    sent = {one.collective: one for one in estimate(devices=2, parallel="zero1").sent}
    positions = 512 * 8  # a buffer, which DDP broadcasts before each forward
    assert sent["broadcast"].bytes == 4 * PARAMETERS + positions


def test_alike_tensors_of_a_list_are_planned_once_and_all_get_their_plan():
    import torch
    from torch.distributed.tensor._op_schema import OpSchema, OutputSharding

    def original(propagator, schema):
        planned.append(schema.args_schema)
        return OutputSharding(tuple(f"plan of {one}" for one in schema.args_schema[0]))

    planned = []
    args = ["wide", "narrow", "wide"], 2.0, ["wide", "narrow", "wide"]
    for op, seen in (
        (torch.ops.aten._foreach_add.List, (["wide", "narrow"], 2.0, ["wide", "narrow"])),
        (torch.ops.aten.cat.default, args),
    ):
        found = dtensor._of_each_kind(original, None, OpSchema(op, args, {}))
        assert found.output_spec == ("plan of wide", "plan of narrow", "plan of wide")
        assert planned.pop() == seen


def test_an_optimizer_over_host_memory_steps_once_for_the_smallest_and_largest():
    import torch

    from memcalc.engine.run import step_offloaded_once

    class OnHost(torch.optim.SGD):
        pass

    weights = [torch.nn.Parameter(torch.ones(size)) for size in (2, 3, 1)]
    optimizer = OnHost(weights, lr=1.0)
    step_offloaded_once(optimizer)
    for _ in range(2):
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert [float(weight.detach()[0]) for weight in weights] == [1.0, 0.0, 0.0]
    assert optimizer.param_groups[0]["params"] == weights


def test_adapters_in_the_dtype_of_the_weights_are_flattened_with_them():
    plan = {"devices": 2, "parallel": "fsdp1", "precision": "bf16", "lora": "r=4"}
    assert estimate(**plan, autocast_adapter_dtype=False).trainable > 0


def test_a_loss_in_pieces_goes_with_tokens_that_are_divided(tmp_path):
    path = write_config(tmp_path, model_type="llama")
    plan = {"devices": 4, "parallel": "tp=2,fsdp2=2", "parallel_args": {"sequence_parallel": True}}
    whole, pieces = (
        memcalc.estimate(path, task="causal-lm", batch=3, seq=256, loss_chunks=n, **plan)
        for n in (1, 8)
    )
    assert pieces.peak.requested < whole.peak.requested


def write_config(tmp_path, **settings):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**sizes, **heads, **settings}))
    return str(path)


@pytest.mark.parametrize(
    "settings",
    [
        {"model_type": "mixtral", "num_local_experts": 4},
        pytest.param({"model_type": "starcoder2", "use_bias": False}, marks=pytest.mark.nightly),
    ],
)
def test_tensor_parallelism_of_layers_unlike_llamas_is_transformers_own_plan(tmp_path, settings):
    from transformers import AutoConfig, AutoModelForCausalLM

    path = write_config(tmp_path, **settings)
    model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
    # Norms and routers stay whole.
    sizes = {name: one.numel() for name, one in model.named_parameters()}
    whole = sum(sizes[name] for name in sizes if "norm" in name or "gate.weight" in name)
    found = memcalc.estimate(path, task="causal-lm", batch=1, seq=64, parallel="tp=2")
    divided = sum(sizes.values()) - whole
    assert found.components[Component.WEIGHTS] == 4 * (whole + divided // 2)


@pytest.mark.nightly
def test_what_ring_attention_does_not_take_is_said_with_what_to_choose(tmp_path):
    settings = {"task": "causal-lm", "batch": 1, "parallel": "cp=2"}
    path = write_config(tmp_path, model_type="llama")
    with pytest.raises(EstimateError, match="a multiple of 64 x cp tokens"):
        memcalc.estimate(path, seq=64, **settings)
    assert memcalc.estimate(path, seq=128, **settings).peak.requested > 0


@pytest.mark.nightly
@pytest.mark.parametrize("parallel", ["fsdp1", "fsdp2"])
def test_a_base_in_4_bit_is_in_shards_beside_its_adapters(tmp_path, parallel):
    path = write_config(tmp_path, model_type="llama")
    settings = {"batch": 1, "seq": 64, "quant": "nf4", "precision": "bf16", "kbit_prepare": False}
    found, alone = (
        memcalc.estimate(path, task="causal-lm", optim="adamw", **settings, **over)
        for over in ({"devices": 2, "parallel": parallel}, {})
    )
    for component in (Component.QUANTIZED_WEIGHTS, Component.OPTIMIZER_STATE):
        whole = alone.components[component]
        assert found.components[component] == pytest.approx(whole / 2, rel=0.02)


def test_fsdp1_over_a_prepared_base_says_what_to_leave_out(tmp_path):
    path = write_config(tmp_path, model_type="llama")
    plan = {"devices": 2, "parallel": "fsdp1", "quant": "nf4", "precision": "bf16"}
    with pytest.raises(UsageError, match="--no-kbit-prepare"):
        memcalc.estimate(path, task="causal-lm", batch=1, seq=64, **plan)


@pytest.mark.nightly
def test_ranks_that_hold_unequal_shards_are_both_run_and_the_larger_one_is_told_of():
    found = estimate(devices=3, parallel="fsdp2")
    (said,) = [text for text in found.assumptions if text.startswith("this is rank")]
    assert said.startswith("this is rank 0 of 3; rank 2 needs ")
    assert estimate(devices=3, parallel="fsdp2", rank=2).peak.requested <= found.peak.requested


@pytest.mark.nightly
def test_replicas_of_shards_talk_in_groups_of_their_own_size():
    talked = {(one.collective, one.ranks) for one in estimate(parallel="hsdp=2x3").sent}
    assert {("all-gather", 3), ("reduce-scatter", 3), ("all-reduce", 2)} <= talked


@pytest.mark.nightly
def test_the_card_is_the_plans_where_a_package_asks_for_it_as_it_is_imported(own_servers):
    # The session's warm process has imported it; peft imports bitsandbytes.
    found = memcalc.estimate(MODEL, batch=2, seq=64, gpu="H200", lora="r=4", devices=2)
    # cuBLAS's workspaces are a quarter of this on other cards.
    assert found.components[Component.WORKSPACES] % 33_554_432 < 1 << 20


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"devices": 2, "parallel": "pp=2"}, "is not built of one embedding, one list of layers"),
        ({"parallel": "ep=2"}, "has no `ep_plan`"),
        ({"parallel": "cp=2,ddp=2"}, "write fsdp2 or hsdp"),
        ({"parallel": "cp=2", "attention": "eager"}, "only with SDPA attention"),
        ({"parallel": "pp=2,pp=2"}, "each once"),
        ({"parallel": "zero1=2,pp=2"}, "goes together"),
        ({"devices": 3, "parallel": "tp=2"}, "their product|cannot be divided"),
        ({"devices": 2, "rank": 2}, "they count from 0"),
        ({"parallel": "tp=2"}, "has no `tp_plan`"),
    ],
)
def test_what_a_layout_does_not_take_is_one_sentence(settings, words):
    with pytest.raises(UsageError, match=words):
        estimate(**settings)
