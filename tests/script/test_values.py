"""Numbers that a script reads: what it put on the GPU is right, and all others are plausible."""

import pytest

from memcalc.records.prediction import FitVerdict

KNOWN = """
    import torch, torch.nn.functional as F
    labels = torch.randint(0, 21, (8, 512, 512)); labels[:, :8] = 255
    y = labels.cuda()
    assert (y != 255).sum().item() == (labels != 255).sum().item()
    assert y[y != 255].shape == labels[labels != 255].shape
    assert torch.equal(torch.unique(y).cpu(), torch.unique(labels))
    assert torch.equal(torch.where(y == 3)[0].cpu(), torch.where(labels == 3)[0])
    depth = torch.rand(8, 1, 256, 256) * 1000
    scaled, at = depth.cuda() / 100, depth / 100
    kept = (scaled > 0.1) & (scaled < 8)
    assert torch.equal(scaled[kept].cpu(), at[(at > 0.1) & (at < 8)])
    normal = (depth.cuda() - depth.mean().item()) / depth.std().item()
    assert abs(normal.mean().item()) < 1e-3 and abs(normal.std().item() - 1) < 1e-3
    small = F.interpolate((y == 3).float()[:, None], size=(64, 64))
    assert small.sum().item() == F.interpolate(
        (labels == 3).float()[:, None], size=(64, 64)
    ).sum()
    turned = torch.eye(2, 3).repeat(8, 1, 1).cuda()
    grid = F.affine_grid(turned, (8, 3, 128, 128), align_corners=True)
    assert (grid.max() - grid.min()).item() == 2
    drawn = torch.rand(3000, 1000, device="cuda")
    assert abs((drawn < 0.15).float().mean().item() - 0.15) < 0.01
    assert abs((torch.randn(3000, 1000, device="cuda") > 0).float().mean().item() - 0.5) < 0.01
    for size in (5000, 50000):
        turned = torch.rand(size, device="cuda").mul_(2).sub_(1)
        assert turned.min().item() < -0.9 < 0.9 < turned.max().item()
        turned[: size // 2].copy_(torch.full((size // 2,), 7.0))
        assert turned[: size // 2].mean().item() == 7 and turned[size // 2 :].max().item() < 1
        assert turned.zero_().sum().item() == 0
    assert torch.zeros(5000, device="cuda").sum().item() == 0
    threes = torch.full((3, 3), 3.0).cuda()
    for size in (3, 300):
        added = torch.zeros(size, size, device="cuda")
        torch.add(threes.repeat(size // 3, size // 3), 1.0, out=added)
        assert added.mean().item() == 4
        added.sub_(9).relu_()
        assert added.sum().item() == 0
    assert torch.nn.functional.hardtanh_(threes.clone()).sum().item() == 9
    assert torch.ones(5000, device="cuda").sum().item() == 5000
    running = torch.zeros((), device="cuda")
    for _ in range(3):
        running.lerp_(torch.ones((), device="cuda"), 0.5)
    assert running.item() == 0.875
    counts = torch.tensor([3, 1, 2], device="cuda")
    assert counts.float().kthvalue(2).values.item() == counts.take(torch.tensor(2).cuda()) == 2
    assert [one.item() for one in counts.aminmax()] == [1, 3]
    assert counts.cummax(0).values.tolist() == [3, 3, 3]
    assert torch.triu_indices(2, 2, device="cuda").tolist() == [[0, 0, 1], [0, 1, 1]]
    square = torch.rand(9, 9)
    for call in (torch.geqrf, torch.linalg.lu_factor, torch.linalg.eigh, torch.linalg.qr):
        assert torch.allclose(call(square.cuda())[0].cpu(), call(square)[0], atol=1e-5)
    assert torch.equal(square.cuda().lgamma_().cpu(), square.lgamma())
    torch._foreach_add_(self=[running], other=[running])
    assert running.item() != 1.75
    for fused in (True, False):
        weight = torch.nn.Parameter(torch.ones(4, device="cuda"))
        optimizer = torch.optim.Adam([weight], fused=fused)
        before = weight.detach().clone()
        weight.square().sum().backward()
        optimizer.step()
        assert not torch.equal(before, weight) and weight.sum().item() != 4
        assert float(optimizer.state[weight]["step"]) == 1
"""
WRITTEN_BY_KERNELS = """
    import torch, torch.nn as nn
    norm = nn.BatchNorm2d(8).cuda()
    norm.eval()(torch.randn(4, 8, 16, 16).cuda())
    assert norm.running_var.mean().item() == 1
    norm.train()(torch.randn(4, 8, 16, 16).cuda())
    assert norm.num_batches_tracked.item() == 1
    scaler, net = torch.amp.GradScaler("cuda", init_scale=64.0), nn.Linear(8, 8).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(3):
        scaler.scale(net(torch.randn(4, 8).cuda()).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert scaler.get_scale() == 64
    print(norm.running_var.mean().item())
"""
LAID_OUT_ANEW = """
    import torch
    bulk = torch.empty(2000, 1000, device="cuda").normal_()
    flat = torch.cat([bulk.view(-1), torch.full((500,), 3.0, device="cuda")])
    ends, rows = torch.empty(500, device="cuda"), torch.empty(1000, 1000, device="cuda")
    ends.copy_(flat[2_000_000:])
    rows.copy_(flat[1_000_000:2_000_000].view(1000, 1000))
    halves, chain = flat.half(), flat
    for _ in range(40):
        chain = chain.clone()
    flat[:7] = 9.0
    kept = bulk.cpu()
    bulk.zero_()
    assert ends.sum().item() == 1500 and bulk.abs().sum().item() == 0 < kept.std().item()
    assert torch.equal(rows.cpu(), kept[1000:]) and torch.equal(chain[:-500].cpu(), kept.view(-1))
    assert torch.equal(flat[7:-500].cpu(), kept.view(-1)[7:]) and flat[:8].sum().item() != 63
    assert torch.equal(halves[:-500].cpu(), kept.view(-1).half())
"""
MASKED = """
    import resource, torch
    states = torch.nn.Linear(64, 1024, device="cuda")(torch.ones(32, 1024, 64, device="cuda"))
    mask = torch.ones(32, 1024, 1024, device="cuda").tril().bool()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(4):
        shares = torch.where(mask, states.softmax(-1), torch.zeros((), device="cuda"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10
    first, *_, last = shares.cpu()[0].sum(-1).tolist()
    assert 0 < first < 0.01 and abs(last - 1) < 0.01
    for size in (32, 512, 1100):
        scores, low = torch.empty(size, size, device="cuda") * 2, -float("inf")
        past = torch.ones(size, size, device="cuda").tril().bool()
        bias = torch.zeros(size, size, device="cuda").masked_fill(~past, low)
        for masked in (
            scores.masked_fill(~past, -1e9) / 8,
            scores.clone().masked_fill_(~past, low),
            torch.where(past, scores, low) * 2,
            scores + bias,
        ):
            for shares in (masked.softmax(-1), masked.log_softmax(-1).exp()):
                assert shares[~past].max().item() == 0
                assert abs(shares.sum().item() / size - 1) < 0.01
    logits = (masked - masked.logsumexp(-1, keepdim=True))[:64, :64].exp()
    assert not (logits[0, 1:] > 0).any()
"""
PUT_IN_A_PART = """
    import torch
    net, start, tours = torch.nn.Linear(64, 64).cuda(), torch.arange(64).cuda(), []
    for size in (100, 5000):
        for put in (
            lambda scores: scores.__setitem__(7, -1),
            lambda scores: scores.__setitem__(torch.tensor([7]).cuda(), -1),
            lambda scores: scores.__setitem__(torch.arange(size).cuda() == 7, -1.0),
            lambda scores: scores.__setitem__(slice(7, 8), torch.full((1,), -1.0)),
            lambda scores: scores[7:8].mul_(0),
            lambda scores: scores[7:8].zero_(),
        ):
            scores = net(torch.randn(size, 64, device="cuda")).detach()[:, 0].contiguous()
            put(scores)
            assert torch.where(scores <= 0)[0].tolist() == [7]
            assert not (scores.topk(size - 1).indices == 7).any() and scores[8].item() > 0
            assert scores.argsort(descending=True)[-1].item() == scores.argsort()[0].item() == 7
        filled = torch.zeros(size, device="cuda")
        filled[: size // 2] = net(torch.randn(size // 2, 64, device="cuda"))[:, 0].detach()
        assert (filled > 0).sum().item() == size // 2 and filled[size // 2 :].sum().item() == 0
    banned = net(torch.randn(64, 64, device="cuda")).detach()
    banned[:, 3] = -float("inf")
    assert (banned > 0).sum().item() == 64 * 63 and not (banned.argmax(-1) == 3).any()
    large = torch.empty(20_000, 64, device="cuda") * 2
    large[:, 3] = -float("inf")
    large[-1, -1] = -1
    assert (large > 0).sum().item() == 20_000 * 63 - 1 and not (large.argmax(-1) == 3).any()
    visited = torch.zeros(64, 64, dtype=torch.bool, device="cuda")
    for _ in range(64):
        scores = net(torch.randn(64, 64, device="cuda")).masked_fill(visited, -1e9)
        tours.append(scores.argmax(-1))
        visited = visited.scatter(1, tours[-1][:, None], True)
    assert visited.all() and all(len(set(one)) == 64 for one in torch.stack(tours, 1).tolist())
    far = torch.cdist(banned[:, 4:], banned[:, 4:])
    far.fill_diagonal_(float("inf"))
    for chosen in (far.argmin(1), far.topk(9, largest=False).indices.T):
        assert not (chosen == start).any()
"""
IN_BACKWARD = """
    import torch, torch.nn as nn
    net = nn.Sequential(nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)).cuda()
    def looks(gradient):
        assert torch.isfinite(gradient).all() and not torch.isnan(gradient).any()
        assert gradient.norm().item() > 0
        assert gradient[torch.isfinite(gradient)].numel() == gradient.numel()
    for one in net.parameters():
        one.register_hook(looks)
        one.register_post_accumulate_grad_hook(lambda one: looks(one.grad))
    net[0].register_full_backward_hook(lambda module, inputs, outputs: looks(outputs[0]))
    for _ in range(2):
        net(torch.randn(128, 512, device="cuda")).square().mean().backward()
    offsets = torch.tensor([0, 50, 128]).cuda()
    jagged = torch.nested.nested_tensor_from_jagged(net(torch.ones(128, 512).cuda()), offsets)
    sum(one.mean() for one in jagged.unbind()).backward()
"""
UNKNOWN = """
    import json, math, pickle, random
    import numpy as np, torch, torch.nn as nn, yaml
    net = nn.Linear(64, 16).cuda()
    out = net(torch.randn(512, 64).cuda())
    loss = out.square().mean()
    loss.backward()
    for size in (1000, 1 << 17, 1 << 18, 1 << 21, 100_000_000):
        large = torch.empty(size, device="cuda") * 2
        assert torch.isfinite(large).all() and not torch.isnan(large).any()
        assert not torch.isinf(large).any() and not (large != large).any()
        assert size > 1 << 21 or large[torch.isfinite(large)].shape == large.shape
    assert all(torch.isfinite(one.grad).all() for one in net.parameters())
    assert math.isfinite(1 / loss.item()) and math.isfinite(math.log10(loss.item()))
    assert loss.item() == loss.item() > 0.05 and out.std().item() > 0
    assert (out.max() - out.min()).item() > 0 and out.max().item() > out.min().item()
    pool = (torch.empty(3, 4096, device="cuda") * 2).unbind()
    assert len(torch.cat([scores.topk(100).indices for scores in pool]).unique()) == 300
    for rows in (out, torch.empty(1024, 3000, device="cuda") * 2):
        shares = rows.detach().softmax(-1)
        assert torch.allclose(shares.cpu().sum(-1), torch.ones(len(rows)), atol=1e-5)
        assert abs(shares[3].tolist()[0] - shares[3].cpu()[0]) == 0
        assert abs(rows.detach().log_softmax(-1)[1].cpu().exp().sum() - 1) < 1e-4
        torch.multinomial(shares[:2].cpu(), 1)
    first = out.detach().softmax(-1)[0]
    mixed = 0.9 * first + 0.1 / 16
    np.random.choice(16, p=(mixed / mixed.sum()).cpu().numpy())
    random.choices(range(16), weights=[float(one) for one in first])
    features = out.detach().cpu().numpy()
    np.linalg.cholesky(np.cov(features.T))
    running = torch.zeros((), device="cuda")
    for _ in range(3):
        running += loss.detach()
    assert abs(running.item() - 3 * loss.item()) < 1e-5
    print(out, f"{loss.detach()}")
    average, doubled = torch.zeros((), device="cuda"), loss.detach() * 2
    for _ in range(200):
        average = 0.9 * average + 0.1 * loss.detach()
    more, seen = doubled + 1, doubled.view(1)
    doubled.add_(5), seen.mul_(3)
    assert abs(average.item() - loss.item()) < 1e-5
    assert abs(more.item() - 2 * loss.item() - 1) < 1e-5
    assert abs(doubled.item() - 6 * loss.item() - 15) < 1e-4
    parts = torch.stack([loss.detach(), loss.detach() * 2])
    second = parts[1] * 1
    del parts
    torch.ones(2, device="cuda")
    assert abs(second.item() - 2 * loss.item()) < 1e-5
    number = loss.item()
    assert type(pickle.loads(pickle.dumps(number))) is float and json.loads(json.dumps(number))
    assert yaml.safe_load(yaml.safe_dump({"loss": number}))["loss"] == number
    torch.save({"loss": number}, "kept.pt")
    assert torch.load("kept.pt")["loss"] == number
    assert torch.allclose(out, net(torch.randn(512, 64).cuda()))
"""
CHECKED = """
    import torch
    out = torch.nn.Linear(64, 64).cuda()(torch.randn(4096, 64, device="cuda"))
    boxes = out.view(-1, 4)
    assert (boxes[:, 2:] >= boxes[:, :2]).all(), f"{len(boxes)} boxes"
    if (out > 0.5).any():
        raise ValueError("any")
    if not (out > 0.5).all():
        raise ValueError("not all")
    assert 100 < out.norm().item() < 50
    torch.distributions.Normal(out, out - 1, validate_args=True)
    torch._assert((out > 3).all(), "low")
"""
DECIDES = """
    import math, statistics, torch, torch.nn as nn
    net, norm = nn.Linear(512, 512).cuda(), nn.BatchNorm1d(512).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    losses, products = torch.zeros(3), torch.ones(9, 9).cuda()
    weights, sums = [[torch.ones(3).cuda() for _ in range(2)] for _ in range(2)]
    for step in range(3):
        loss = norm(net(torch.randn(64, 512, device="cuda"))).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad(); losses[step] = loss.item()
        torch._foreach_lerp_(weights, [one * 3 for one in weights], 0.5)
        torch._foreach_mul_(sums, loss.item())
        if loss.item() < 0.05:
            break
        if step == 1 and {condition}:
            torch.zeros(64 << 20, device="cuda")
"""


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(KNOWN, id="put on the GPU"),
        pytest.param(LAID_OUT_ANEW, id="large random numbers, copied before they are read"),
        pytest.param(MASKED, id="a softmax's, masked before they are read"),
        pytest.param(UNKNOWN, id="computed"),
        pytest.param(CHECKED, id="checked"),
        pytest.param(WRITTEN_BY_KERNELS, id="written by kernels"),
        pytest.param(IN_BACKWARD, id="read by hooks"),
    ],
)
def test_numbers_that_a_script_reads_let_it_go_on(run, script):
    found = run(script)
    assert found.ending.code == 0
    assert not found.ending.decides


def test_numbers_put_among_computed_ones_are_found_there_and_not_chosen(run):
    assert run(PUT_IN_A_PART).ending.code == 0


def at_night(*conditions):
    return [pytest.param(one, marks=pytest.mark.nightly) for one in conditions]


@pytest.mark.parametrize(
    "condition",
    [
        "math.exp(loss.item()) > 3",
        *at_night(
            "loss.item() < 1e-3",
            "loss < 1e-3",
            "round(loss.item() * 2 + 1, 2) < 0",
            "statistics.mean([loss.item(), 0.5]) > 1",
            "(loss > 1).item()",
            "torch.addmm(*[torch.ones(9, 9).cuda()] * 3).max().item() > 2",
            "norm.running_var.mean().item() > 1.5",
            "loss.detach().cpu().mean() > 1",
            "losses.mean() > 1",
            "torch.tensor([loss.item()]).mean() > 1",
            "(losses.cuda() * 2).max().item() > 2",
            "(torch.ones(3) * loss.item()).sum() > 3",
            "weights[0].sum().item() > 4",
            "sums[0].sum().item() > 4",
            "torch.mm(*[torch.ones(9, 9).cuda()] * 2, out=products).max().item() > 2",
            "not torch.allclose(loss, loss * 2)",
            "not torch.isclose(loss, loss * 2).all()",
        ),
    ],
)
def test_what_another_branch_needs_is_told(run, condition):
    found = run(DECIDES.replace("{condition}", condition), gpu="t4")
    prediction = found.traced.prediction
    assert prediction.peak.allocated < 256 << 20
    assert prediction.fit.verdict is FitVerdict.FITS
    said = prediction.assumptions[0]
    assert "decide at train.py:12, train.py:14" in said
    assert "train.py:12 (" in said
    assert "train.py:14 (256.0 MiB more)" in said


def test_another_branch_that_does_not_fit_leaves_it_tight(run):
    script = DECIDES.replace("{condition}", "loss.item() < 1e-3").replace("64 << 20", "8 << 30")
    prediction = run(script, gpu="t4").traced.prediction
    assert prediction.fit.verdict is FitVerdict.TIGHT
    assert "train.py:14 (runs out of memory)" in prediction.assumptions[0]


def test_a_guard_that_skips_every_step_gives_way_to_training(run):
    found = run(
        """
        import torch
        net = torch.nn.Linear(2048, 2048).cuda()
        optimizer = torch.optim.Adam(net.parameters())
        for step in range(3):
            net(torch.randn(64, 2048, device="cuda")).square().mean().backward()
            if net.weight.grad.norm().item() > 0.01:
                optimizer.zero_grad()
                continue
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    prediction = found.traced.prediction
    assert prediction.components["optimizer_state"] >= 2 * 4 * 2048 * 2048
    assert "which trains more" in prediction.assumptions[0]


GOES_TO_THE_HOST = """
    import array, json, math, pickle, struct, numpy as np, pandas, torch
    net = torch.nn.Linear(512, 512).cuda()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step in range(3):
        loss = net(torch.randn(64, 512, device="cuda")).square().mean()
        loss.backward(); optimizer.step(); optimizer.zero_grad()
        if {condition}:
            torch.zeros(64 << 20, device="cuda")
"""


@pytest.mark.parametrize(
    "condition",
    [
        "np.mean([loss.item()]) > 1",
        *at_night(
            "math.exp(float(loss)) > 3",
            "loss.detach().cpu().numpy() > 2",
            "pandas.Series([loss.item()]).mean() > 1",
            "pandas.DataFrame([{'loss': loss.item()}])['loss'].min() > 1",
            "json.loads(json.dumps({'loss': loss.item()}))['loss'] > 1",
            "pickle.loads(pickle.dumps(loss.item())) > 1",
            "float(f'loss {loss.item()}'.split()[1]) > 1",
            "np.float64(3) * loss.item() > 3",
            "float(f'{loss.item():.3f}') > 1",
            "float('%.3f' % loss.item()) > 1",
            "torch.Tensor([loss.item()]).mean() > 1",
            "array.array('d', [loss.item()])[0] > 1",
            "struct.unpack('d', struct.pack('d', loss.item()))[0] > 1",
        ),
    ],
)
def test_what_larger_numbers_take_is_told_where_nobody_sees_what_they_decide(run, condition):
    prediction = run(GOES_TO_THE_HOST.replace("{condition}", condition), gpu="t4").traced.prediction
    assert prediction.peak.allocated < 256 << 20
    said = prediction.assumptions[0]
    assert "go to the host at train.py:8" in said
    assert "larger ones (256.0 MiB more), smaller ones (the same peak)" in said


SIZES = """
    import torch
    out = torch.nn.Linear(64, 64).cuda()(torch.randn(1024, 64, device="cuda"))
    count = (out[:, 0] > 0.95).sum()
    {size}
"""


@pytest.mark.parametrize(
    "size",
    [
        "kept = [torch.zeros(1 << 18, device='cuda') for _ in range(count)]",
        *at_night(
            "torch.zeros(count, 1 << 18, device='cuda')",
            "torch.zeros(count.item(), 1 << 18, device='cuda')",
            "torch.zeros(round(out.mean().item() - 0.5), 1 << 28, device='cuda')",
            "out[:count].repeat(1, 4096)",
            "out.repeat_interleave((out[:, 0] * 99).long(), 0)",
            "torch.unique((out[:, 0] * 20).long()).repeat(1 << 16)",
        ),
    ],
)
def test_a_size_that_follows_from_made_up_numbers_is_told(run, size):
    said = run(SIZES.replace("{size}", size), gpu="t4").traced.prediction.assumptions[0]
    assert "go to the host at train.py:5" in said
    assert "MiB more" in said or "GiB more" in said or "runs out of memory" in said


WAITS = """
    import torch
    net = torch.nn.Linear(64, 64).cuda()
    while not {reached}:
        pass
"""


@pytest.mark.parametrize(
    "reached",
    [
        'net(torch.randn(8, 64, device="cuda")).mean().item() > 3',
        *at_night('(net(torch.randn(8, 64, device="cuda")) > 3).all()'),
    ],
)
def test_a_loop_that_waits_for_a_made_up_number_ends(run, reached):
    found = run(WAITS.replace("{reached}", reached))
    assert found.ending.code == 0
    assert [*found.ending.decides] == ["train.py:4"]


HALTS = """
    import torch
    cell, halt = torch.nn.GRUCell(512, 512).cuda(), torch.nn.Linear(512, 1).cuda()
    for step in range(2):
        state, total = torch.randn(1024, 512).cuda(), torch.zeros(1024).cuda()
        turns = 0
        while {stays}:
            if {leaves}: break
            state = cell(state, state)
            total = total + halt(state).squeeze(-1).sigmoid()
            turns += 1
        state.square().mean().backward()
    print(turns)
"""


@pytest.mark.parametrize(
    ("stays", "leaves"),
    [
        ("turns < 9 and (total < 0.99).any()", "turns > 9"),
        pytest.param("True", "turns == 9 or not (total < 0.99).any()", marks=pytest.mark.nightly),
    ],
)
def test_the_other_way_of_a_loop_is_a_longer_one(run, stays, leaves):
    found = run(HALTS.replace("{stays}", stays).replace("{leaves}", leaves))
    said = found.traced.prediction.assumptions[0]
    assert f"decide at train.py:{7 if leaves == 'turns > 9' else 8}" in said
    assert "MiB more)" in said


def test_a_branch_that_fails_is_told_and_not_counted(run):
    found = run(
        """
        import sys, torch
        out = torch.nn.Linear(64, 64).cuda()(torch.randn(64, 64, device="cuda"))
        if out.mean().item() > 100:
            torch.zeros(1 << 28, device="cuda")
            sys.exit("diverged")
        """
    )
    prediction = found.traced.prediction
    assert prediction.peak.allocated < 1 << 28
    assert "the other way at train.py:4 (ends with exit code 1)" in prediction.assumptions[0]


@pytest.mark.parametrize("guard", ["(out > 0.95).any()", *at_night("True")])
def test_a_mask_of_unknown_numbers_tells_what_it_takes_to_keep_everything(run, guard):
    found = run(
        f"""
        import torch
        out = torch.nn.Linear(64, 1024).cuda()(torch.randn(4096, 64, device="cuda"))
        if {guard}:
            kept = out[out > 0.95].repeat(9)
        """
    )
    said = found.traced.prediction.assumptions[0]
    assert f"decide at train.py:{5 if guard == 'True' else 4};" in said
    assert "MiB more)" in said


def test_where_a_number_of_a_script_decides_nothing_no_other_way_is_run(run):
    found = run(
        """
        import torch
        out = torch.nn.Linear(64, 64).cuda()(torch.randn(64, 64, device="cuda"))
        print(out.mean().item(), f"{out.std().item():.3f}", out[0].tolist()[:2])
        """
    )
    said = " ".join(found.traced.prediction.assumptions)
    assert "made-up ones between 0.1 and 0.9 (at train.py:4)" in said
    assert not found.ending.decides


def test_a_large_choice_between_numbers_is_made_when_it_is_read(run):
    found = run(
        """
        import torch
        mask = torch.zeros(8, 1, 256, 512, dtype=torch.bool, device="cuda")
        mask[..., :100] = True
        bias = torch.where(mask, 0.0, -1.0)
        wide = torch.where(mask.expand(8, 2, 256, 512), bias, 5.0)
        mask.fill_(False)
        assert bias.sum().item() == -8 * 256 * 412 and bias[0, 0, 0, 99].item() == 0
        assert wide.sum().item() == 8 * 2 * 256 * 412 * 5 and bias.cpu().min().item() == -1
        """
    )
    assert found.ending.code == 0
    assert not any("numbers" in one for one in found.traced.prediction.assumptions)
