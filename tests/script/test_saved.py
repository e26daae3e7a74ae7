"""What other verbs make of a saved result."""

import json

import pytest
import torch

SCRIPT = """
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for _ in range(3):
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_a_saved_result_is_shown_explained_and_drawn_without_a_run(memcalc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(SCRIPT)
    typed = ("--gpu", "t4", "-o", "saved.json", "--", "python", "train.py")
    assert memcalc("simulate", *typed).returncode == 0
    (tmp_path / "train.py").write_text("raise SystemExit(7)")
    # Long after, of the cache nothing is left.
    monkeypatch.setenv("MEMCALC_CACHE", str(tmp_path / "empty"))
    saved = json.loads((tmp_path / "saved.json").read_text())
    shown = memcalc("show", "saved.json")
    assert shown.returncode == 0
    assert "fits on T4" in shown.stdout
    explained = memcalc("explain", "saved.json", "--format", "json")
    assert explained.returncode == 0, explained.stderr
    assert json.loads(explained.stdout)["peak"]["requested"] == saved["peak"]["requested"]
    (tried,) = json.loads(explained.stdout)["trials"]
    assert [one["key"] for one in tried["remedies"]] == ["expandable"]
    assert tried["figures"]["peak"]["allocated"] == saved["peak"]["allocated"]
    assert memcalc("report", "saved.json", "-o", "page.svg").returncode == 0
    assert "<svg" in (tmp_path / "page.svg").read_text()
    assert memcalc("report", "saved.json", "-o", "page.pickle").returncode == 0
    plotted = memcalc("explain", "saved.json", "--no-remedies", "--plot")
    assert "requested bytes: " in plotted.stdout
    saved["trace"] = saved["trace"][: len(saved["trace"]) // 8 * 4]
    (tmp_path / "saved.json").write_text(json.dumps(saved))
    refused = memcalc("explain", "saved.json")
    assert (refused.returncode, "holds no trace" in refused.stderr) == (2, True)


ATTENDS = """
import sys
import torch
from torch import nn
batch, vocabulary = int(sys.argv[2]), 1024
inputs, head = nn.Linear(64, 64).cuda(), nn.Linear(64, vocabulary).cuda()
optimizer = torch.optim.AdamW([*inputs.parameters(), *head.parameters()])
for _ in range(3):
    x = inputs(torch.ones(batch, 512, 64, device="cuda"))
    x = (x @ x.mT).softmax(-1) @ x
    logits = head(x)
    wanted = torch.zeros(batch * 512, dtype=torch.long, device="cuda")
    loss = nn.functional.cross_entropy(logits.view(-1, vocabulary), wanted)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_a_scripts_code_could_do_without_is_named_by_line(memcalc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train.py").write_text(ATTENDS)
    command = ("python", "mine/train.py", "--batch-size", "8")
    assert memcalc("simulate", "--gpu", "t4", "-o", "saved.json", "--", *command).returncode == 0
    explained = json.loads(memcalc("explain", "saved.json", "--format", "json").stdout)
    shown = " ".join(explained["in_the_code"])
    assert "train.py:10: if this is attention, scaled_dot_product_attention" in shown
    assert "train.py:13: the loss keeps logits of all tokens" in shown
    assert "from train.py:11 outlive backward: a variable holds them" in shown
    halved, _ = explained["trials"]
    assert (halved["remedies"][0]["key"], halved["error"]) == ("half the batch", None)
    assert halved["figures"]["peak"]["requested"] < explained["prediction"]["peak"]["requested"]
    # What lies in another folder, or was changed since, is not what was run.
    (tmp_path / "mine" / "train.py").write_text(f"{ATTENDS}\nopen('ran', 'w')\n")
    explained = json.loads(memcalc("explain", "saved.json", "--format", "json").stdout)
    assert [one["remedies"][0]["key"] for one in explained["trials"]] == ["expandable"]
    assert not (tmp_path / "ran").exists()


RESUMES = """
import os
import torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    if step == 2:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "new.pt")
        os.replace("new.pt", "last.pt")
        saved = torch.load("last.pt", map_location="cuda")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    model(torch.ones(4, 256, device="cuda")).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
assert optimizer.state[model.weight]["step"].item() == 4
"""


def test_a_script_resumes_what_it_saved(memcalc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(RESUMES)
    (tmp_path / "last.pt").write_text("mine")
    assert memcalc("simulate", "--steps", "0", "--", "python", "train.py").returncode == 0
    assert (tmp_path / "last.pt").read_text() == "mine"
    assert not (tmp_path / "new.pt").exists()


FOLDERS = """
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
config = LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=512)
base = LlamaForCausalLM(config).cuda()
base.save_pretrained("mine", max_shard_size="100KB")
model = get_peft_model(base, LoraConfig(r=8, target_modules=["q_proj"]))
model.save_pretrained("adapter")
again = AutoModelForCausalLM.from_pretrained("mine", dtype=torch.bfloat16).cuda()
assert again.dtype is torch.bfloat16 and again.name_or_path == "mine"
model = PeftModel.from_pretrained(again, "adapter", is_trainable=True)
trained = [p for p in model.parameters() if p.requires_grad]
assert len(trained) == 4 and all(p.is_cuda for p in trained)
optimizer = torch.optim.AdamW(trained)
ids = torch.ones(2, 16, dtype=torch.long, device="cuda")
model(input_ids=ids, labels=ids).loss.backward()
optimizer.step()
"""


@pytest.mark.nightly
def test_a_model_and_its_adapter_are_loaded_from_where_they_were_saved(
    memcalc, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(FOLDERS)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "config.json").write_text("mine")
    done = memcalc("simulate", "--steps", "0", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert "checkpoints are not written" in " ".join(done.stdout.split())
    assert (tmp_path / "mine" / "config.json").read_text() == "mine"
    assert not (tmp_path / "adapter").exists()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["config.json"]


TRAINER = """
import os
from transformers import (
    AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments)
config = LlamaConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=2, vocab_size=512)
ids = list(range(16))
rows = [{"input_ids": ids, "labels": ids} for _ in range(8)]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, max_steps=4, save_steps=2, eval_strategy="steps",
    eval_steps=2, load_best_model_at_end=True, report_to=[], disable_tqdm=True)
trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, eval_dataset=rows)
trainer.train()
trainer.save_model("final")
model = AutoModelForCausalLM.from_pretrained("final").cuda()
assert model.num_parameters() == trainer.model.num_parameters()
assert os.path.isfile("out/checkpoint-4/model.safetensors")
arguments.max_steps, arguments.save_total_limit = 6, 2
again = Trainer(LlamaForCausalLM(config), arguments, train_dataset=rows, eval_dataset=rows)
again.train(resume_from_checkpoint=True)
assert again.state.global_step == 6 and again.state.log_history[0]["step"] == 2
assert "checkpoint-6" in os.listdir("out")
"""


@pytest.mark.nightly
def test_what_a_trainer_saved_is_loaded(memcalc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAINER)
    (tmp_path / "out" / "checkpoint-1").mkdir(parents=True)
    done = memcalc("simulate", "--steps", "0", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "final").exists()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["checkpoint-1"]


ACCELERATED = """
import os
import torch
from accelerate import Accelerator
def train(epochs):
    accelerator = Accelerator()
    model = torch.nn.Linear(64, 64)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    if os.path.isdir("state"):
        accelerator.load_state("state")
    for _ in range(epochs):
        model(torch.ones(4, 64, device="cuda")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        accelerator.save_state("state")
    return optimizer.state[model.weight]["step"].item()
assert train(2) == 2
assert train(1) == 3
"""


@pytest.mark.nightly
def test_accelerate_goes_on_from_a_state(memcalc, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(ACCELERATED)
    done = memcalc("simulate", "--steps", "0", "--", "python", "train.py")
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "state").exists()


LOADS = """
import torch
batch = torch.load("data.pt")
frozen = torch.nn.Module()
frozen.register_buffer("scale", torch.zeros(3))
frozen.load_state_dict({"scale": torch.load("data.pt", map_location="cpu")["scale"]})
assert frozen.scale.tolist() == [2.0, 2.0, 2.0]
assert batch["rows"].tolist() == [7, 9]
torch.empty(sum(batch["rows"].tolist()), device="cuda")
"""


def test_a_file_of_tensors_is_read_with_its_numbers(run, tmp_path):
    torch.save({"rows": torch.tensor([7, 9]), "scale": torch.full((3,), 2.0)}, tmp_path / "data.pt")
    assert run(LOADS).ending.code == 0


def test_an_object_that_is_saved_whole_holds_nothing_on_the_gpu(run):
    found = run(
        """
        import gc, torch
        model = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.BatchNorm1d(512)).cuda()
        model[0].register_parameter("tied", model[0].weight)
        optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
        optimizer.zero_grad()
        before = torch.cuda.memory_allocated()
        torch.save(model, "model.pt")
        torch.save({"model": model, "optimizer": optimizer, "epoch": 3}, "all.pt")
        assert torch.cuda.memory_allocated() == before
        del model, optimizer
        gc.collect()
        assert torch.cuda.memory_allocated() == 0
        model = torch.load("model.pt", weights_only=False)
        assert torch.cuda.memory_allocated() == before
        assert model[0].tied is model[0].weight and model[1].running_mean.is_cuda
        host = torch.load("model.pt", map_location="cpu", weights_only=False)
        assert not any(one.is_cuda for one in host.state_dict().values())
        loaded = torch.load("all.pt", weights_only=False)
        assert loaded["epoch"] == 3 and type(loaded["optimizer"]) is torch.optim.SGD
        """
    )
    assert not found.ending.code
    said = "checkpoints are not written (train.py:8, train.py:9)"
    assert said in found.traced.prediction.assumptions
