"""Our optimizers inside what people train with."""

import subprocess
import sys
import textwrap

import accelerate
import pytest
import torch
import transformers
from torch import nn
from torch._subclasses import FakeTensorMode

from memcalc.optim import AdamW8bit, AdamWBF16

ALL = [(AdamW8bit, torch.float32), (AdamW8bit, torch.bfloat16), (AdamWBF16, torch.bfloat16)]


@pytest.fixture(params=ALL, ids=lambda pair: f"{pair[0].__name__}-{pair[1]}")
def recipe(request):
    return request.param


def small_model(dtype):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 300), nn.GELU(), nn.Linear(300, 4)).to(dtype)


def batch(dtype):
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(64, 16, generator=generator)
    return inputs.to(dtype), inputs[:, :4].argmax(1)


def fit(model, optimizer, forward, dtype, steps=30):
    inputs, targets = batch(dtype)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(forward(inputs).float(), targets)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_grad_scaler_unscales_and_skips_the_step_that_overflowed():
    model = small_model(torch.float32)
    optimizer = AdamW8bit(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    inputs, targets = batch(torch.float32)
    losses = []
    for step in range(20):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = nn.functional.cross_entropy(model(inputs).float(), targets)
        scaler.scale(loss).backward()
        if step == 5:
            model[0].weight.grad[0, 0] = torch.inf
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert {values["step"] for values in optimizer.state.values()} == {19}


def test_accelerate_prepares_trains_and_reloads(recipe, tmp_path):
    make, dtype = recipe
    model = small_model(dtype)
    optimizer = make(model.parameters(), lr=1e-2)
    accelerator = accelerate.Accelerator(cpu=True)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
    model, optimizer, schedule = accelerator.prepare(model, optimizer, schedule)
    inputs, targets = batch(dtype)

    def one_step():
        loss = nn.functional.cross_entropy(model(inputs).float(), targets)
        accelerator.backward(loss)
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        return loss.item()

    losses = [one_step() for _ in range(10)]
    accelerator.save_state(str(tmp_path))
    further = [one_step() for _ in range(3)]
    accelerator.load_state(str(tmp_path))
    assert [one_step() for _ in range(3)] == further
    assert further[-1] < losses[0]


def test_the_trainer_of_transformers_trains_and_resumes(recipe, tmp_path):
    make, dtype = recipe
    config = transformers.BertConfig(
        vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=160, max_position_embeddings=16, num_labels=2,
        hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    )  # fmt: skip
    generator = torch.Generator().manual_seed(0)
    rows = [torch.randint(0, 64, (8,), generator=generator) for _ in range(32)]
    data = [{"input_ids": r, "labels": int(r[0] >= 32)} for r in rows]

    def trainer(steps):
        torch.manual_seed(0)
        model = transformers.BertForSequenceClassification(config).to(dtype)
        arguments = transformers.TrainingArguments(
            output_dir=str(tmp_path), max_steps=steps, per_device_train_batch_size=8,
            save_steps=4, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True,
        )  # fmt: skip
        optimizer = make(model.parameters(), lr=3e-3)
        return transformers.Trainer(
            model=model, args=arguments, train_dataset=data, optimizers=(optimizer, None)
        )

    whole = trainer(8)
    whole.train()
    resumed = trainer(8)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    for a, b in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(a, b)
    assert {s["step"] for s in resumed.optimizer.optimizer.state.values()} == {8}


def whole_and_sharded(name, precision):
    """Trains a model whole and sharded; are both equal, and what are the sharded parameters?"""
    import os

    import torch.distributed as dist
    from torch.distributed.fsdp import fully_shard

    import memcalc.optim

    make, dtype = getattr(memcalc.optim, name), getattr(torch, precision)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")
    torch.set_num_threads(1)  # equal sums of gradients
    dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
    mesh = dist.init_device_mesh("cpu", (1,))
    after = []
    for sharded in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 300), nn.Linear(300, 4)).to(dtype)
        if sharded:
            fully_shard(model, mesh=mesh)
        optimizer = make(model.parameters(), lr=1e-2)
        for _ in range(3):
            model(torch.ones(2, 16).to(dtype)).float().square().sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        after.append([getattr(p, "full_tensor", lambda p=p: p)() for p in model.parameters()])
    equal = all(torch.equal(a, b) for a, b in zip(*after, strict=True))
    return [equal, type(next(model.parameters())).__name__]


def test_sharded_parameters_of_fsdp_train_like_whole_ones(forked, recipe):
    make, dtype = recipe
    precision = str(dtype).removeprefix("torch.")
    assert forked(whole_and_sharded, make.__name__, precision) == [True, "DTensor"]


def test_on_a_device_without_data_a_step_makes_the_state_and_no_temporary(recipe):
    make, dtype = recipe
    with torch.device("meta"):
        model = small_model(dtype)
    optimizer = make(model.parameters())
    for p in model.parameters():
        p.grad = torch.empty_like(p)
    optimizer.step()
    assert all(s["step"] == 1 for s in optimizer.state.values())


def test_a_step_can_be_traced_with_fake_tensors(recipe):
    make, dtype = recipe
    with FakeTensorMode():
        model = nn.Linear(16, 300, dtype=dtype)
        optimizer = make(model.parameters())
        for _ in range(2):
            model(torch.ones(2, 16, dtype=dtype)).float().sum().backward()
            optimizer.step()
        assert all(s["step"] == 2 for s in optimizer.state.values())


def test_the_package_imports_torch_and_nothing_else_of_memcalc():
    script = """
        import sys, memcalc.optim
        face = ("memcalc", "memcalc.version", "memcalc.records", "memcalc.records.display")
        ours = {m for m in sys.modules if m.startswith("memcalc") and "optim" not in m}
        ours = sorted(ours - set(face))
        heavy = [m for m in ("triton", "transformers", "bitsandbytes", "rich") if m in sys.modules]
        print(ours, heavy)
    """
    run = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == "[] []"
