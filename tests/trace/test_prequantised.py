"""Checkpoints in few bits: their files hold what the packages write, and load peaks less."""

import json
import pathlib

import pytest

from memcalc.catalog import models

NF4 = {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4", "bnb_4bit_compute_dtype": "bfloat16"}
TOLD = {
    "nf4-dq": {**NF4, "bnb_4bit_use_double_quant": True},
    "fp4": {**NF4, "bnb_4bit_quant_type": "fp4", "bnb_4bit_compute_dtype": "float32"},
    "int8": {"load_in_8bit": True},
}
SMALL = {
    "num_hidden_layers": 3,
    "hidden_size": 96,
    "intermediate_size": 200,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 1000,
}
SKIPPING = ["lm_head", "model.layers.1.mlp"]


def _config(folder, told, name="Qwen/Qwen2.5-0.5B", **changed):
    folder.mkdir(exist_ok=True)
    config = {**models.find(name).config, **SMALL, "dtype": "float16", **changed}
    config.pop("layer_types", None)
    if told is not None:
        config["quantization_config"] = {"quant_method": "bitsandbytes", **told}
    (folder / "config.json").write_text(json.dumps(config))
    return str(folder / "config.json")


def headers(path, folder):
    """Names, shapes and types: of what an estimate reads, and of what save_pretrained wrote.

    The real checkpoint is quantised by the packages on the CPU.
    """
    import torch
    import transformers
    from safetensors.torch import load_file

    from memcalc.catalog.plan import make
    from memcalc.registry import find
    from memcalc.workload.prepare import prepare
    from memcalc.workload.quantised import written

    config = json.loads(pathlib.Path(path).read_text())
    told = config.pop("quantization_config")
    auto = transformers.AutoModelForCausalLM
    made = auto.from_config(transformers.AutoConfig.for_model(**config)).to(torch.float16)
    made.save_pretrained(f"{folder}/plain")
    auto.from_pretrained(
        f"{folder}/plain",
        quantization_config=transformers.BitsAndBytesConfig.from_dict(dict(told)),
        device_map={"": "cpu"},
        dtype=torch.float16,
    ).save_pretrained(f"{folder}/saved")
    real = load_file(f"{folder}/saved/model.safetensors")
    plan = make({"model": path, "precision": "fp16", "batch": 1, "seq": 16})
    ours = written(prepare(plan, find(plan.optim, {})).model, plan)
    states = [name for name in real if "quant_state" in name]
    return [
        {name: (tuple(one.shape), str(one.dtype)) for name, one in held.items()}
        for held in (ours, real)
        if not states or set(states) <= set(held)
    ]


@pytest.mark.parametrize(
    ("scheme", "name", "more"),
    [
        ("nf4-dq", "Qwen/Qwen2.5-0.5B", {}),
        ("fp4", "gpt2", {"n_layer": 2, "n_embd": 96, "n_head": 4}),
        ("int8", "Qwen/Qwen2.5-0.5B", {"tie_word_embeddings": False}),
        pytest.param("nf4-dq", "TinyLlama/TinyLlama-1.1B", {}, marks=pytest.mark.nightly),
    ],
)
def test_a_checkpoint_is_read_as_the_packages_write_it(tmp_path, forked, scheme, name, more):
    told = {**TOLD[scheme], "llm_int8_skip_modules": SKIPPING if more == {} else None}
    path = _config(tmp_path / "model", told, name, **more)
    ours, real = forked(headers, path, str(tmp_path))
    # How a weight was quantised is written as text, with one offset in it.
    for name in [name for name in real if ".quant_state." in name]:
        (length,), kind = ours.pop(name)
        (written,), real_kind = real.pop(name)
        assert abs(length - written) < 32
        assert kind == real_kind
    assert ours == real
    assert any(
        kind == ("torch.int8" if scheme == "int8" else "torch.uint8") for _, kind in real.values()
    )


def peaks(plans):
    """Allocated at the peak of loading, and what the tensors of the base take, plan by plan."""
    from memcalc.catalog.plan import make
    from memcalc.estimation.tracing import Desk

    found = []
    for plan in plans:
        prediction, trace = Desk().estimate(make(plan))
        load = next(phase for phase in prediction.phases if phase.phase.value == "load")
        held = sum(tensor.bytes for tensor in trace.inventory.tensors)
        folded = any("repeated layers" in said for said in trace.assumptions)
        found.append((load.allocated, held, folded))
    return found


def test_what_is_quantised_already_peaks_lower_as_it_is_loaded_and_holds_the_same(tmp_path, forked):
    told = {**TOLD["nf4-dq"], "bnb_4bit_compute_dtype": "bfloat16"}
    # A weight in 16 bit that outweighs all the rest.
    wide = {"intermediate_size": 9600, "dtype": "bfloat16"}
    plan = {"precision": "bf16", "batch": 1, "seq": 16}
    already = {**plan, "model": _config(tmp_path / "already", told, **wide)}
    while_loading = {**plan, "model": _config(tmp_path / "plain", None, **wide), "quant": "nf4-dq"}
    (less, held, _), (more, same, _) = forked(peaks, [already, while_loading])
    assert held == same
    assert less < more - 96 * 9600


@pytest.mark.nightly
def test_layers_that_are_left_as_they_are_by_number_are_not_continued(tmp_path, forked):
    deep = {"num_hidden_layers": 16}
    alike = _config(tmp_path / "alike", TOLD["nf4-dq"], **deep)
    skipping = {**TOLD["nf4-dq"], "llm_int8_skip_modules": SKIPPING}
    uneven = _config(tmp_path / "uneven", skipping, **deep)
    plan = {"precision": "bf16", "batch": 1, "seq": 16}
    (_, held, folded), (_, more, whole) = forked(
        peaks, [{**plan, "model": alike}, {**plan, "model": uneven}]
    )
    assert (folded, whole) == (True, False)
    # One layer's MLP in 16 bit.
    assert more - held > 3 * 96 * 200
