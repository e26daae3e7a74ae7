"""Quantised bases: every linear layer takes what the real package gives it; folded is whole."""

import json
import math

import pytest

from memcalc.catalog import models
from memcalc.catalog.quantised import TORCHAO

SCHEMES = ("nf4", "nf4-dq", "fp4", "int8")
SMALL = {
    "num_hidden_layers": 2,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}


def _config(folder, name="Qwen/Qwen2.5-0.5B", **changed):
    config = {**models.find(name).config, **SMALL, **changed}
    config.pop("layer_types", None)
    path = folder / "config.json"
    path.write_text(json.dumps(config))
    return str(path)


def _bytes_of(tensors):
    """Bytes of each tensor of the base by name, without the names that adapters put around it."""
    found = {}
    for tensor in tensors:
        name = tensor.name.removeprefix("base_model.model.").replace(".base_layer.", ".")
        if "lora_" not in name:
            found[name] = [tensor.bytes, tensor.numel]
    return found


def predicted_and_loaded(path, folder, schemes):
    """By scheme: what an estimate says each tensor takes, and what from_pretrained makes it take.

    The checkpoint is a real one, and the package quantises it on the CPU.
    """
    import torch
    import transformers

    from memcalc.catalog.plan import make
    from memcalc.estimation.tracing import Desk
    from memcalc.workload import quantised
    from memcalc.workload.inventory import take

    config = transformers.AutoConfig.from_pretrained(path)
    made = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    made.save_pretrained(folder)
    answers = {}
    for scheme in schemes:
        plan = {"model": path, "quant": scheme, "precision": "bf16", "batch": 1, "seq": 16}
        plan = make({**plan, "kbit_prepare": False})
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            quantization_config=quantised.settings_of(plan),
            device_map={"": "cpu"},
            dtype=torch.bfloat16,
        )
        real = _bytes_of(take(loaded, "", "").parameters + _constants(take(loaded, "", "")))
        trace = Desk().estimate(plan)[1]
        inventory = trace.inventory
        answers[scheme] = (_bytes_of(inventory.parameters + _constants(inventory)), real)
    return answers


def _constants(inventory):
    return tuple(tensor for tensor in inventory.tensors if tensor.constant)


def test_bytes_of_every_linear_layer_are_the_packages_own_after_loading(tmp_path, forked):
    answers = forked(predicted_and_loaded, _config(tmp_path), str(tmp_path / "checkpoint"), SCHEMES)
    assert set(answers) == set(SCHEMES)
    for scheme, (predicted, real) in answers.items():
        assert predicted == real, scheme
        # lm_head, embeddings and norms are not quantised.
        assert any(name.endswith("q_proj.weight") for name in real)
        quantised = sum(1 for name in real if name.endswith((".absmax", ".SCB")))
        assert quantised == 2 * 7, scheme
    dq, _ = answers["nf4-dq"]
    for name in [name for name in dq if name.endswith("_proj.weight")]:
        own = sum(size for key, (size, _) in dq.items() if key.startswith(name))
        assert own == closed_form(dq[name][1])


def test_bytes_in_torchao_are_the_packages_own_too(tmp_path, forked):
    pytest.importorskip("torchao")
    path, folder = _config(tmp_path), str(tmp_path / "checkpoint")
    answers = forked(predicted_and_loaded, path, folder, tuple(TORCHAO))
    assert set(answers) == set(TORCHAO)
    for scheme, (predicted, real) in answers.items():
        assert predicted == real, scheme
        scales = [name for name in real if name.endswith(".weight.scale")]
        assert len(scales) == 2 * 7, scheme
        # One byte a weight, and rows of them to a scale.
        weight = scales[0].removesuffix(".scale")
        assert real[weight][0] == real[weight][1]


def test_a_model_without_linear_layers_is_not_called_quantised(tmp_path, forked):
    pytest.importorskip("torchao")
    said = forked(refused, {"model": "gpt2", "quant": "torchao-int8", "batch": 1, "seq": 16})
    assert "finds no layer to quantise in GPT2LMHeadModel" in said


def refused(plan):
    from memcalc.catalog.plan import make
    from memcalc.errors import MemcalcError
    from memcalc.estimation.tracing import Desk

    try:
        Desk().estimate(make(plan))
    except MemcalcError as error:
        return str(error)
    return ""


def closed_form(numel):
    """NF4 with double quantisation: Dettmers et al., QLoRA, 2023, with bitsandbytes' tables.

    Codes of 16 and 256 numbers and one offset in fp32, blocks of 64 weights and of 256 constants.
    """
    blocks = math.ceil(numel / 64)
    return numel // 2 + blocks + 4 * math.ceil(blocks / 256) + 4 * 16 + 4 * 256 + 4


def folded_and_whole(plan):
    """Are the two traces equal, with what is told beside and all tensors, and was one folded?"""
    from memcalc import registry
    from memcalc.catalog.plan import make
    from memcalc.estimation.question import resolve
    from memcalc.trace.folding import fold
    from memcalc.trace.folding.tagged import same
    from memcalc.trace.run import trace
    from memcalc.workload.prepare import prepare

    plan = make(plan)

    def traced(least):
        fold.LEAST_REPEATS = least
        choice = registry.find(plan.optim, {})
        return trace(prepare(plan, choice), resolve(plan, None)[0])

    folded, whole = traced(5), traced(1000)
    return [
        same(folded, whole),
        folded.asides == whole.asides and len(whole.asides) == 1,
        folded.inventory == whole.inventory,
        any("repeated layers" in said for said in folded.assumptions),
    ]


@pytest.mark.nightly
def test_a_folded_trace_of_a_quantised_base_is_the_whole_trace(tmp_path, forked):
    path = _config(tmp_path, num_hidden_layers=8)
    plan = {"model": path, "precision": "bf16", "batch": 1, "seq": 16}
    qlora = {"quant": "nf4-dq", "checkpointing": True, "optim": "paged_adamw_8bit"}
    assert forked(folded_and_whole, {**plan, **qlora}) == [True] * 4


def phases_of(plan):
    """Peaks of the phases, and what the components at the peak of preparing are."""
    from memcalc.catalog.plan import make
    from memcalc.estimation.tracing import Desk

    prediction, trace = Desk().estimate(make(plan))
    held = {storage.component.value for storage in trace.storages}
    return {phase.phase.value: phase.requested for phase in prediction.phases}, sorted(held)


def test_loading_and_preparing_have_peaks_of_their_own(tmp_path, forked):
    plan = {"model": _config(tmp_path), "quant": "nf4", "precision": "bf16", "batch": 1, "seq": 16}
    prepared, held = forked(phases_of, plan)
    assert {"load", "prepare", "forward"} <= set(prepared)
    assert {"quantised_weights", "quantisation_constants", "weights"} <= set(held)
    bare, _ = forked(phases_of, {**plan, "kbit_prepare": False})
    assert bare["load"] == prepared["load"]
    # Embeddings in fp32 beside those in bf16.
    assert bare["prepare"] < prepared["prepare"]


@pytest.mark.nightly
def test_ddp_wraps_a_base_that_is_loaded_and_prepared_already(tmp_path, forked):
    plan = {"model": _config(tmp_path), "quant": "nf4", "precision": "bf16", "batch": 1, "seq": 16}
    alone, _ = forked(phases_of, plan)
    wrapped, held = forked(phases_of, {**plan, "devices": 2})
    assert wrapped["load"] == alone["load"]
    assert "communication" in held
    # Buckets hold the gradients of what trains.
    assert wrapped["backward"] > alone["backward"]


@pytest.mark.nightly
@pytest.mark.parametrize("loop", ["plain", "accelerate"])
def test_a_base_that_is_loaded_on_the_host_comes_to_its_gpu_block_by_block(tmp_path, forked, loop):
    deep = _config(tmp_path, num_hidden_layers=12)
    plan = {"model": deep, "quant": "nf4", "precision": "bf16", "batch": 1, "seq": 16}
    plan = {**plan, "kbit_prepare": False, "devices": 2, "parallel": "fsdp2", "loop": loop}
    whole, held = forked(phases_of, plan)
    divided, same = forked(phases_of, {**plan, "parallel_args": {"load": "cpu"}})
    peak = max(divided["load"], divided["prepare"])
    assert 0 < peak < max(whole["load"], whole["prepare"])
    assert held == same
    assert {"quantised_weights", "quantisation_constants", "weights"} <= set(same)


def operations(plans):
    """Floating-point operations of a step of each plan."""
    from memcalc.catalog.plan import make
    from memcalc.estimation.tracing import Desk

    return [Desk().estimate(make(plan))[0].flops for plan in plans]


@pytest.mark.parametrize("seq", [16, pytest.param(600, marks=pytest.mark.nightly)])
def test_a_quantised_base_multiplies_as_often_as_one_in_16_bit(tmp_path, forked, seq):
    """Few rows are for the package's own products, many for PyTorch's on weights turned back."""
    plan = {"model": _config(tmp_path), "precision": "bf16", "batch": 4, "seq": seq, "lora": "r=8"}
    # Preparing turns what attention is given into fp32, so other kernels of attention run.
    bare = {**plan, "kbit_prepare": False}
    plans = [plan, *({**bare, "quant": scheme} for scheme in SCHEMES)]
    plain, *quantised = forked(operations, plans)
    assert plain > 0
    assert quantised == [plain] * len(SCHEMES)
