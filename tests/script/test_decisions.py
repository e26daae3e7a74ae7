"""What a script decides by that zeros would answer wrongly, and what it must not find written."""

import signal
import time
from pathlib import Path

import pytest

from memcalc.errors import EstimateError

GENERATES = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2, pad_token_id=1, bos_token_id=1, eos_token_id=0,
)).cuda()
prompt = torch.randint(2, 64, (2, 5), device="cuda")
mask = torch.ones_like(prompt)
for options in ({}, {"do_sample": True}, {"num_beams": 2}):
    made = model.generate(prompt, attention_mask=mask, max_new_tokens=9, **options)
    assert made.shape == (2, 14), (options, made.shape)
"""


def test_a_model_whose_first_token_ends_a_text_generates_all_it_may(run):
    found = run(GENERATES)
    assert found.ending.code == 0
    assert any("end-of-sequence" in said for said in found.traced.prediction.assumptions)


DRAWS = """
import torch
from torch.distributions import Categorical, Normal
mean = torch.zeros(4, 3, device="cuda", requires_grad=True)
normal = Normal(mean, mean.exp(), validate_args=True)
loss = -normal.log_prob(normal.sample()).sum()
choice = Categorical(logits=mean, validate_args=True)
(loss - choice.log_prob(choice.sample()).sum()).backward()
assert mean.grad.shape == (4, 3)
"""


def test_distributions_take_what_the_gpu_would_have_made(run):
    found = run(DRAWS)
    assert found.ending.code == 0
    assert any("torch.distributions" in said for said in found.traced.prediction.assumptions)


ASSERTS = """
import torch
model = torch.nn.Linear(4, 4)
assert torch.allclose(model.weight, model.weight.T) and not model.weight.nonzero().numel()
model.cuda()
known = torch.ones(2, 4, device="cuda")
assert torch.allclose(model(known), known + 1)
assert torch.allclose(known, known * 1) and not torch.allclose(known, known + 1)
"""


def test_what_two_ways_make_is_as_close_as_a_script_asserts(run):
    assert run(ASSERTS).ending.code == 0


FACTORS = """
import torch
matrix = torch.randn(3, 4, 4, device="cuda")
positive = matrix @ matrix.mT
assert not torch.any(torch.linalg.cholesky_ex(positive).info)
assert not torch.any(torch.linalg.lu_factor_ex(matrix).info)
assert not torch.any(torch.linalg.inv_ex(matrix).info)
known = torch.tensor([[1.0, 2.0], [2.0, 1.0]]).cuda()
assert torch.linalg.cholesky_ex(known).info.item() and not torch.linalg.inv_ex(known).info.item()
"""


def test_factors_of_unknown_matrices_are_found(run):
    """gpytorch adds more and more to the diagonal of a matrix that has none, and gives up."""
    assert run(FACTORS).ending.code == 0


ACTS = """
import torch
from torch.distributions import Categorical
policy = torch.nn.Linear(4, 2)
chosen = Categorical(torch.softmax(policy(torch.ones(1, 4)), dim=1), validate_args=True)
assert chosen.sample().item() in (0, 1)
torch.ones(1, device="cuda")
try:
    Categorical(torch.tensor([2.0, -1.0]), validate_args=True)
    raise SystemExit("the script's own numbers are not looked at")
except ValueError:
    pass
"""


def test_a_policy_on_the_host_draws_its_actions(run):
    found = run(ACTS)
    assert found.ending.code == 0
    assert any("torch.distributions" in said for said in found.traced.prediction.assumptions)


def test_how_pytorch_was_built_can_be_asked(run):
    found = run("import torch; assert 'C++' in torch.__config__.show(); torch.ones(1).cuda()")
    assert found.ending.code == 0


TRAINS = """
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
model = LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2,
))
rows = [{"input_ids": list(range(8)), "labels": list(range(8))}] * 8
arguments = TrainingArguments(
    "out", max_steps=2, per_device_train_batch_size=4, eval_strategy="steps", eval_steps=1,
    save_strategy="steps", save_steps=1, save_total_limit=1, load_best_model_at_end=True,
    report_to=[], disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=rows, eval_dataset=rows)
found = trainer.train()
trainer.save_metrics("train", found.metrics)
trainer.save_state()
trainer.save_model()
"""


def test_a_trainer_that_keeps_its_best_leaves_an_earlier_run_as_it_is(run, tmp_path):
    before = tmp_path / "out" / "checkpoint-1"
    before.mkdir(parents=True)
    (tmp_path / "out" / "trainer_state.json").write_text("{}")
    (before / "model.safetensors").write_text("weights")
    assert run(TRAINS, steps=0).ending.code == 0
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in before.parent.rglob("*"))
    assert found == ["checkpoint-1", "checkpoint-1/model.safetensors", "trainer_state.json"]
    assert (tmp_path / "out" / "trainer_state.json").read_text() == "{}"
    assert (before / "model.safetensors").read_text() == "weights"


SAVES = """
import os, signal
from transformers import LlamaConfig, LlamaForCausalLM
LlamaForCausalLM(LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
    num_attention_heads=2,
)).cuda().save_pretrained("kept")
from memcalc.children import scratch
assert os.listdir(scratch._given[0])
open("where", "w").write(scratch._given[0])
"""


@pytest.mark.parametrize("number", [0, signal.SIGKILL, signal.SIGTERM])
def test_what_a_script_saved_is_removed_however_it_ends(run, tmp_path, number):
    text = f"{SAVES}os.kill(os.getpid(), {int(number)})"
    if number:
        with pytest.raises(EstimateError):
            run(text)
    else:
        assert run(text).ending.code == 0
    where = Path((tmp_path / "where").read_text())
    for _ in range(100):
        # A child that has answered is ended while its asker goes on.
        if not where.exists():
            break
        time.sleep(0.1)
    assert not where.exists()
    assert not (tmp_path / "kept").exists()


INVERTS = """
import torch
window = torch.hann_window(16).cuda()
there = torch.stft(torch.randn(60, 40, device="cuda"), 16, 4, window=window, return_complex=True)
assert torch.istft(there, 16, 4, window=window).shape == (60, 40)
assert there.istft(16, 4, window=window, length=30).shape == (60, 30)
"""


def test_windows_of_an_inverse_transform_overlap(run):
    found = run(INVERTS)
    assert found.ending.code == 0
    assert any("istft" in said for said in found.traced.prediction.assumptions)
