"""Weights of a script hold no numbers and are not fetched, unless that is asked for."""

import json

import pytest

from memcalc.children.ask import WARM
from memcalc.script.simulate import plan_of, simulate

READS = """
import torch
model = torch.nn.Linear(4, 4, bias=False)
torch.nn.init.constant_(model.weight, 2.0)
model.register_buffer("scale", torch.full((1,), 3.0))
weight = model.weight.detach()
read = float(weight.sum()), weight[0].tolist(), weight.numpy().sum()
model.cuda()
optimizer = torch.optim.SGD(model.parameters())
model(torch.ones(2, 4, device="cuda")).sum().backward()
optimizer.step()
wanted = {"numbers": (32.0, [2.0] * 4, 32.0), "none": (0.0, [0.0] * 4, 0.0)}[open("said").read()]
assert read == wanted, read
assert model.weight.detach().cpu().sum() == 0
"""


@pytest.mark.parametrize("weights", [False, True])
def test_a_script_reads_its_own_weights_on_the_host(parent, tmp_path, monkeypatch, weights):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(READS)
    (tmp_path / "said").write_text("numbers" if weights else "none")
    found = simulate(plan_of(["python", "train.py"]), parent, weights=weights)
    assert (found.ending.code, found.ending.steps) == (0, 1)
    said = "; ".join(found.traced.prediction.assumptions)
    assert ("weights on the host (at train.py:7) are read as zeros" in said) != weights
    assert ("weights on the host hold their numbers" in said) == weights


CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "dtype": "bfloat16",
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "vocab_size": 500,
}
LOADS = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("someone/tiny", device_map="cuda")
assert (model.dtype, model.device.type) == (torch.bfloat16, "cuda")
assert model.name_or_path == "someone/tiny"
ids = torch.ones(2, 16, dtype=torch.long, device="cuda")
optimizer = torch.optim.SGD(model.parameters())
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
"""


@pytest.fixture
def published(tmp_path, monkeypatch):
    """Lays a config where the hub's cache has it, and runs a script beside it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    # A parent of its own: where the cache lies is settled when it starts.
    monkeypatch.delenv(WARM, raising=False)

    def run(config, script, inside="", **options):
        kept = tmp_path / "hub" / "models--someone--tiny"
        commit = "1" * 40
        lies = kept / "snapshots" / commit / inside
        lies.mkdir(parents=True)
        (kept / "refs").mkdir()
        (kept / "refs" / "main").write_text(commit)
        (lies / "config.json").write_text(json.dumps(config))
        (tmp_path / "train.py").write_text(script)
        return simulate(plan_of(["python", "train.py"]), **options)

    return run


@pytest.mark.nightly
@pytest.mark.parametrize("weights", [False, True])
def test_weights_that_are_not_here_are_those_of_the_config(published, weights):
    found = published(CONFIG, LOADS, weights=weights)
    if weights:
        assert found.ending.code == 1
        return
    assert (found.ending.code, found.ending.steps) == (0, 1)
    said = "; ".join(found.traced.prediction.assumptions)
    assert "weights of someone/tiny are not on this machine" in said


TIED = """
assert model.lm_head.weight is model.model.embed_tokens.weight
"""
IN_4_BIT = """
import torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained("someone/tiny", device_map={"": 0})
weight = model.model.layers[1].mlp.up_proj.weight
assert (weight.dtype, weight.numel()) == (torch.uint8, 128 * 256 // 2)
assert weight.quant_state.shape == (256, 128)
assert (weight.quant_state.dtype, weight.quant_state.nested) == (torch.bfloat16, True)
assert weight.quant_state.absmax.dtype == torch.uint8
assert model.lm_head.weight is model.model.embed_tokens.weight
ids = torch.ones(2, 16, dtype=torch.long, device="cuda")
with torch.no_grad():
    model(input_ids=ids)
"""
QUANTISED = {
    "quant_method": "bitsandbytes",
    "load_in_4bit": True,
    "bnb_4bit_quant_type": "nf4",
    "bnb_4bit_use_double_quant": True,
    "bnb_4bit_compute_dtype": "bfloat16",
}


@pytest.mark.nightly
def test_tied_weights_that_are_not_here_are_tied(published):
    found = published({**CONFIG, "tie_word_embeddings": True}, LOADS + TIED)
    assert (found.ending.code, found.ending.steps) == (0, 1)


@pytest.mark.nightly
def test_a_checkpoint_in_4_bit_that_is_not_here_is_what_the_packages_write(published):
    config = {**CONFIG, "tie_word_embeddings": True, "quantization_config": QUANTISED}
    found = published(config, IN_4_BIT)
    assert found.ending.code == 0
    held = {storage.component.value for storage in found.traced.trace.storages}
    assert {"quantised_weights", "quantisation_constants"} <= held


UNET = {
    "_class_name": "UNet2DModel",
    "block_out_channels": [32, 64],
    "down_block_types": ["DownBlock2D", "AttnDownBlock2D"],
    "up_block_types": ["AttnUpBlock2D", "UpBlock2D"],
    "layers_per_block": 1,
    "sample_size": 16,
}
LOADS_UNET = """
import torch
from diffusers import UNet2DModel
model = UNet2DModel.from_pretrained("someone/tiny", subfolder="unet", torch_dtype=torch.bfloat16)
assert (model.dtype, model.device.type, model.training) == (torch.bfloat16, "cpu", False)
model.cuda().train()
optimizer = torch.optim.AdamW(model.parameters())
noisy = torch.randn(2, 3, 16, 16, device="cuda", dtype=torch.bfloat16)
model(noisy, 1).sample.sum().backward()
optimizer.step()
"""


@pytest.mark.nightly
def test_weights_of_diffusers_that_are_not_here_are_those_of_the_config(published):
    pytest.importorskip("diffusers")
    found = published(UNET, LOADS_UNET, inside="unet")
    assert (found.ending.code, found.ending.steps) == (0, 1)
    said = "; ".join(found.traced.prediction.assumptions)
    assert "weights of someone/tiny are not on this machine" in said


PIPELINE = """
import json, os, torch
from diffusers import DDPMPipeline, DDPMScheduler, UNet2DModel
config = {config}
os.makedirs("folder/unet")
json.dump(config, open("folder/unet/config.json", "w"))
DDPMScheduler().save_config("folder/scheduler")
json.dump({{
    "_class_name": "DDPMPipeline",
    "unet": ["diffusers", "UNet2DModel"],
    "scheduler": ["diffusers", "DDPMScheduler"],
}}, open("folder/model_index.json", "w"))
pipeline = DDPMPipeline.from_pretrained("folder").to("cuda")
assert pipeline.unet.device.type == "cuda"
with torch.inference_mode():
    pipeline(batch_size=2, num_inference_steps=3)
pipeline.save_pretrained("saved")
again = DDPMPipeline.from_pretrained("saved")
assert again.unet.config.sample_size == 16
"""


@pytest.mark.nightly
def test_a_pipeline_is_of_its_configs_and_is_found_where_it_was_saved(tmp_path, monkeypatch):
    pytest.importorskip("diffusers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(PIPELINE.format(config=UNET))
    found = simulate(plan_of(["python", "train.py"]))
    assert found.ending.code == 0
    assert not (tmp_path / "saved").exists()
