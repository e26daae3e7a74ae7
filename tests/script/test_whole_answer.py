"""What a script's answer says: components, phases, lines, steps, whatever the script is like."""

import pytest

from memcalc.advice.explain.peak import moments
from memcalc.estimation import processes
from memcalc.records.prediction import FitVerdict
from memcalc.records.trace import Component, Phase
from memcalc.report.rows import outcome_words, verdict

TRAINS = """
    import torch
    model = torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.Linear(1024, 8))
    optimizer = torch.optim.AdamW(model.parameters())
    model.to("cuda")
    torch.cuda.reset_peak_memory_stats()
    for step in range(9):
        batch = torch.randn(64, 256).cuda()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        print(torch.cuda.max_memory_allocated(), file=open("said", "a"))
"""
WEIGHTS = 4 * (256 * 1024 + 1024 + 1024 * 8 + 8)


def test_the_answer_is_what_the_script_itself_sees_of_its_gpu(run, tmp_path):
    found = run(TRAINS, steps=3)
    assert (found.ending.stopped, found.ending.steps) == (True, 3)
    prediction = found.traced.prediction
    assert int((tmp_path / "said").read_text().splitlines()[2]) == prediction.peak.allocated
    assert prediction.components[Component.WEIGHTS] == WEIGHTS
    assert prediction.components[Component.OPTIMIZER_STATE] == 2 * WEIGHTS
    assert prediction.components[Component.INPUTS] == 4 * 64 * 256
    assert prediction.optimizer_state.optimizer == "AdamW"
    phases = {phase.phase for phase in prediction.phases}
    assert phases == {Phase.LOAD, Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.ZERO_GRAD}
    lines = {storage.line for storage in found.traced.trace.storages}
    assert {"train.py:5", "train.py:8", "train.py:9", "train.py:11"} <= lines
    assert {"0", "1"} <= {one.module for one in found.traced.trace.storages if one.step == 1}


def test_what_follows_zero_grad_is_forward_of_the_coming_step(run):
    after = 'file=open("said", "a"))'
    fetches = f'{after}\n        batch = torch.empty(1 << 22, device="cuda"); del batch'
    steps = {}
    for one in run(TRAINS.replace(after, fetches), steps=3).traced.trace.readings:
        steps.setdefault(one.step, []).append(one)
    phases = [Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.ZERO_GRAD]
    assert [one.phase for one in steps[1]] == phases
    # The batch is there as the first step ends, and gradients of 1 MB are gone by then.
    forward, (*_, clears) = steps[1][0], steps[1]
    assert forward.requested - clears.requested == (1 << 24) - WEIGHTS


RUNS_OUT = """
    import torch
    model = torch.nn.Sequential(*[torch.nn.Linear(4096, 4096) for _ in range(8)]).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    def train():
        for step in range(3):
            rows = torch.randn(250_000, 4096, device="cuda")
            model(rows).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    train()
"""


def test_a_script_that_runs_out_of_memory_says_where_and_what_it_needs(run, capfd):
    found = run(RUNS_OUT, gpu="rtx-3090")
    prediction, refusal = found.traced.prediction, found.traced.prediction.refusal
    assert found.ending.code == 1
    assert prediction.fit.verdict is FitVerdict.DOES_NOT_FIT
    assert (refusal.phase, refusal.line) == (Phase.FORWARD, "train.py:8")
    assert refusal.asked == 4 * 250_000 * 4096
    assert refusal.free < refusal.asked
    assert prediction.peak.requested > 8 * 4 * 250_000 * 4096
    assert prediction.components[Component.ACTIVATIONS] >= 8 * 4 * 250_000 * 4096
    said = capfd.readouterr().err
    assert 'train.py", line 11' in said
    assert 'train.py", line 8, in train' in said
    assert "torch/nn" not in said


@pytest.mark.nightly
def test_a_script_that_runs_out_of_a_part_of_the_gpu_may_fit_it(run):
    limited = "torch.cuda.set_per_process_memory_fraction(0.5)\n    optimizer ="
    found = run(RUNS_OUT.replace("optimizer =", limited), gpu="rtx-3090")
    prediction = found.traced.prediction
    assert (found.ending.code, prediction.fit) == (1, None)
    assert "memory_fraction leaves" in next(outcome_words(prediction))


GROWS = """
    import torch
    kept = []
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(50):
        model(torch.randn(8, 64).cuda()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        kept.append(torch.zeros(1 << 20, device="cuda"))
"""


def test_a_script_that_keeps_more_every_step_says_how_much_and_where(run):
    prediction = run(GROWS, gpu="t4").traced.prediction
    growth = prediction.growth
    assert (growth.bytes, growth.line) == (4 << 20, "train.py:10")
    assert (growth.holder, growth.filled) == ("kept", "train.py:10")
    assert 3000 < growth.steps < 4000
    assert prediction.fit.verdict is FitVerdict.LEAKS
    assert verdict(prediction).startswith("leaks on T4")
    assert prediction.components[Component.HELD] >= 2 * growth.bytes
    assert not any("longer run" in one for one in prediction.uncounted)


INFERS = """
    import torch
    kept = []
    model = torch.nn.Linear(512, 512).cuda().eval()
    with torch.no_grad():
        for batch in range(20):
            kept.append(model(torch.randn(256 + 8 * batch, 512, device="cuda")){then})
"""


def test_a_loop_without_training_that_keeps_its_outputs_leaks(run):
    prediction = run(INFERS.replace("{then}", ""), gpu="t4").traced.prediction
    assert prediction.growth.line == "train.py:7"
    assert prediction.growth.holder == "kept"
    assert prediction.fit.verdict is FitVerdict.LEAKS
    assert run(INFERS.replace("{then}", ".cpu()"), gpu="t4").traced.prediction.growth is None


EVALUATES = """
    import torch
    model = torch.nn.Linear(64, 512).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        model(torch.randn(8, 64).cuda()).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    kept = []
    model.eval()
    for batch in range(20):
        out = model(torch.randn(4096, 64, device="cuda"))
        {then}
"""


def test_an_evaluation_after_training_that_keeps_its_outputs_leaks(run):
    prediction = run(EVALUATES.replace("{then}", "kept.append(out)"), gpu="t4").traced.prediction
    assert prediction.growth.bytes >= 4096 * 512 * 4
    assert prediction.growth.holder.startswith("kept")
    assert prediction.fit.verdict is FitVerdict.LEAKS


@pytest.mark.nightly
def test_an_evaluation_after_training_that_keeps_nothing_does_not_leak(run):
    assert run(EVALUATES.replace("{then}", "pass"), gpu="t4").traced.prediction.growth is None


@pytest.mark.parametrize(
    "where", ["torch.enable_grad()", pytest.param("torch.no_grad()", marks=pytest.mark.nightly)]
)
def test_passes_whose_outputs_an_update_learns_from_are_no_leak(run, where):
    rollouts = """
        import torch
        model = torch.nn.Linear(64, 512).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for update in range(2):
            kept = []
            for turn in range(20):
                with WHERE:
                    kept.append(model(torch.randn(4096, 64, device="cuda")))
            model(torch.stack(kept)[..., :64]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    """
    rollouts = rollouts.replace("WHERE", where)
    assert run(rollouts, gpu="t4", steps=0).traced.prediction.growth is None


@pytest.mark.parametrize(("epochs", "steps", "leaks"), [(4, 0, False), (1, 0, False), (1, 5, True)])
def test_a_list_that_is_emptied_after_each_epoch_leaks_only_until_then(run, epochs, steps, leaks):
    emptied = f"""
    import torch
    outs, means = [], []
    model = torch.nn.Linear(64, 4096).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range({epochs}):
        for step in range(6):
            out = model(torch.randn(4096, 64).cuda())
            out.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            outs.append(out.detach())
        means.append(sum(each.mean() for each in outs))
        outs.clear()
    """
    prediction = run(emptied, gpu="t4", steps=steps).traced.prediction
    assert (prediction.fit.verdict is FitVerdict.LEAKS) is leaks
    if leaks:
        assert prediction.growth.filled == "train.py:12, emptied at train.py:14"


KEEPS = """
    import torch

    class Trainer:
        def __init__(self):
            self.model = torch.nn.Linear(1024, 2048).cuda()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.seen = {}

        def step(self, number, rows):
            loss = self.model(rows).square().mean()
            loss.backward(retain_graph=True)
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.seen[number] = KEPT

    def main():
        trainer, before = Trainer(), None
        for number in range(9):
            rows = torch.randn(1024 + 256 * number, 1024, device="cuda")
            trainer.step(number % 2 if "KEPT" == "rows" else number, rows)

    main()
"""


@pytest.mark.parametrize("steps", [3, 0])
def test_what_a_function_keeps_of_every_step_is_found_though_batches_grow(run, steps):
    """After the function has ended as well, of which no variable is left."""
    growth = run(KEEPS.replace("KEPT", "loss"), gpu="t4", steps=steps).traced.prediction.growth
    assert (growth.line, growth.varies) == ("train.py:11", steps == 0)
    assert growth.holder == "self.seen with its graph"
    assert growth.filled == "train.py:15"


def test_a_script_that_grows_and_fails_leaks_and_says_that_it_failed(run):
    found = run(f"{GROWS}    raise ValueError('no data')\n", gpu="t4", steps=0)
    prediction = found.traced.prediction
    assert prediction.fit.verdict is FitVerdict.LEAKS
    assert prediction.assumptions[0].startswith("the script ended with exit code 1")


def test_ranks_are_ordered_by_every_verdict():
    assert set(processes._WORST) == set(FitVerdict)


def test_batches_that_grow_are_no_leak_also_where_the_last_two_are_kept(run):
    prediction = run(KEEPS.replace("KEPT", "rows"), gpu="t4", steps=0).traced.prediction
    assert (prediction.growth, prediction.fit.verdict) == (None, FitVerdict.FITS)
    assert any("longer run" in one for one in prediction.uncounted)


BY_HAND = """
    import torch
    from torch.utils.checkpoint import checkpoint
    first, second, last = [torch.nn.Linear(1024, n).cuda() for n in (1024, 1024, 8)]
    weights = [p for part in (first, second, last) for p in part.parameters()]
    average, begun = ({n: p.detach().clone() for n, p in enumerate(weights)} for _ in range(2))
    inner = torch.nn.Sequential(second, *[torch.nn.GELU() for _ in range(6)])
    for step in range(99):
        rows = torch.randn(4096, 1024, device="cuda")
        last(checkpoint(inner, first(rows), use_reentrant=False)).square().mean().backward()
        with torch.no_grad():
            for n, p in enumerate(weights):
                p -= 0.1 * p.grad
                average[n].lerp_(p, 0.1)
                p.grad = None
"""


def test_updates_by_hand_are_steps_and_what_is_alive_is_told_by_what_holds_it(run):
    found = run(BY_HAND)
    assert (found.ending.stopped, found.ending.steps) == (True, 3)
    prediction, trace = found.traced.prediction, found.traced.trace
    held = 4 * (1024 + 1) * (1024 + 1024 + 8)
    components = (Component.WEIGHTS, Component.OPTIMIZER_STATE, Component.HELD)
    assert {prediction.components[one] for one in components} == {held}
    alive = moments(trace, prediction.plan)[Phase.BACKWARD].groups
    reasons = {(group.component, group.kept) for group in alive}
    assert (Component.HELD, "held by the variable begun; backward does not free it") in reasons
    recomputed = {why for _, why in reasons if why.startswith("recomputed")}
    assert recomputed
    assert all("the loss" not in why for why in recomputed)


IN_HOOKS = """
    import multiprocessing, torch
    def other():
        torch.zeros(1 << 22, device="cuda")
    if __name__ == "__main__":
        {begins}
        model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)]).cuda()
        optimizers = {{p: torch.optim.AdamW([p]) for p in model.parameters()}}
        def update(p):
            optimizers[p].step()
            optimizers[p].zero_grad()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(update)
        for step in range(9):
            model(torch.randn(64, 512, device="cuda")).square().mean().backward()
"""


SPAWNS = "multiprocessing.get_context('spawn').Pool(1).apply(other)"


@pytest.mark.parametrize("begins", ["pass", pytest.param(SPAWNS, marks=pytest.mark.nightly)])
def test_gradients_are_known_in_hooks_and_other_processes_are_told(run, begins):
    prediction = run(IN_HOOKS.format(begins=begins), gpu="2xt4").traced.prediction
    assert prediction.peak.phase is Phase.BACKWARD
    assert prediction.components[Component.GRADIENTS] == 4 * 512 * 512
    assert any("uses 1 of 2 GPUs" in one for one in prediction.assumptions)
    told = any(one.startswith("processes that the script started") for one in prediction.uncounted)
    assert told == (begins == SPAWNS)


OWN = """
    import copy, torch
    from torch import nn

    class Momentum:
        def __init__(self, params):
            self.params, self.state = list(params), {}

        @torch.no_grad()
        def step(self):
            for p in self.params:
                kept = self.state.setdefault(p, (torch.zeros_like(p), torch.zeros_like(p)))
                kept[0].add_(p.grad)

        def zero_grad(self):
            for p in self.params:
                p.grad = None

    class Base(torch.Tensor):
        pass

    class Image(Base):
        pass

    image = torch.ones(4, 3).cuda().as_subclass(Image)
    base = torch.ones(4, 3).cuda().as_subclass(Base)
    assert type(base + image) is Image and type(image - base) is Image

    model = nn.Sequential(*[nn.Linear(512, 512) for _ in range(4)])
    model(torch.zeros(1, 512))
    model = model.cuda()
    average = copy.deepcopy(model)
    optimizer = Momentum(model.parameters())
    for step in range(40):
        model(torch.randn(8, 512, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_optimizers_copies_and_tensors_of_ones_own_are_what_they_are(run):
    found = run(OWN)
    held = 4 * 4 * (512 * 512 + 512)
    assert found.ending.steps == 3
    components = found.traced.prediction.components
    assert found.traced.prediction.optimizer_state.optimizer == "Momentum"
    assert components[Component.OPTIMIZER_STATE] == 2 * held
    assert components[Component.WEIGHTS] == 2 * held
    assert any(one.module.startswith("copy of") for one in found.traced.trace.storages)


MOVED = """
    import copy, torch
    from torch import nn
    net = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    net(torch.zeros(8, 256))
    net = net.cuda().bfloat16()
    rows = torch.zeros(8, 256, device="cuda", dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9)
    for step in range(3):
        net(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_weights_stay_weights_after_they_are_moved_and_cast(run):
    components = run(MOVED, steps=0).traced.prediction.components
    held = 2 * 6 * (256 * 256 + 256)
    assert components[Component.WEIGHTS] == components[Component.OPTIMIZER_STATE] == held
    assert components[Component.GRADIENTS] in (0, held)


VALUES = """
    import copy, torch
    ids = torch.randint(5, 500, (4, 128)); ids[:, -7:] = 0
    on_gpu = ids.cuda()
    assert on_gpu.max().item() == ids.max().item() and (on_gpu == 0).any()
    assert torch.equal(on_gpu[on_gpu != 0].cpu(), ids[ids != 0])
    assert (on_gpu != 0).sum(1).tolist() == [121] * 4
    assert sorted(torch.randperm(100, device="cuda").tolist()) == list(range(100))
    before = torch.get_rng_state()
    assert 3 <= torch.randint(3, 9, (5,), device="cuda").min().item() < 9
    assert torch.equal(before, torch.get_rng_state())
    assert torch.isfinite(torch.nn.Linear(8, 8).cuda()(torch.ones(2, 8).cuda())).all()
    rows = torch.zeros(256, 1 << 10, device="cuda")
    held = torch.cuda.memory_allocated()
    copy.deepcopy(rows[0])
    assert torch.cuda.max_memory_allocated() >= held + rows.nbytes
    pairs = torch.stack([ids.flatten() % 7, ids.flatten() % 5])
    alone = pairs.unique(dim=1)
    assert torch.equal(pairs.cuda().unique(dim=1).cpu(), alone)
    rows = torch.zeros(pairs.shape[1], 8, device="cuda")
    assert torch.sparse_coo_tensor(pairs.cuda(), rows).coalesce()._nnz() == alone.shape[1]
    sparse = torch.relu(torch.randn(4, 100, device="cuda")).to_sparse()
    assert torch.stack(list(sparse.unbind(0))).shape == (4, 100)
    torch.rand(3, device="cuda").sum().item()
"""


def test_what_a_script_put_on_the_gpu_is_read_back(run):
    found = run(VALUES)
    assert found.ending.code == 0
    assert any("return real values" in one for one in found.traced.prediction.assumptions)


GRAPHED = """
    import torch
    side = torch.cuda.Stream()
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rows = torch.zeros(64, 256, device="cuda")
    with torch.cuda.stream(side):
        model(rows).sum().backward()
        optimizer.zero_grad(set_to_none=True)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        model(rows).sum().backward()
        optimizer.step()
    for _ in range(100):
        graph.replay()
    print(torch.cuda.max_memory_reserved(), file=open("said", "w"))
"""


def test_steps_in_a_cuda_graph_are_counted_as_it_is_replayed(run, tmp_path):
    found = run(GRAPHED)
    assert (found.ending.stopped, found.ending.steps) == (True, 3)
    found = run(GRAPHED, steps=0)
    assert found.ending.steps == 101
    assert int((tmp_path / "said").read_text()) == found.traced.prediction.peak.reserved


TWO = """
    import torch
    first = torch.nn.Linear(1024, 1024).to("cuda:0")
    second = torch.nn.Linear(1024, 1024).to("cuda:1")
    both = [*first.parameters(), *second.parameters()]
    optimizer = torch.optim.SGD(both, lr=0.1, momentum=0.9)
    for _ in range(3):
        hidden = first(torch.randn(64, 1024, device="cuda:0"))
        second(hidden.to("cuda:1")).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    peaks = [torch.cuda.max_memory_allocated(gpu) for gpu in range(2)]
    print(*peaks, file=open("said", "w"))
"""


def test_each_gpu_of_a_process_has_figures_of_its_own(run, tmp_path):
    found = run(TWO, gpu="2xt4", steps=0)
    seen = [int(word) for word in (tmp_path / "said").read_text().split()]
    assert [one.peak.allocated for one in found.traced.prediction.gpus] == seen


LARGE = """
    import resource, torch
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    model = torch.nn.Sequential(*[torch.nn.Linear(8192, 8192) for _ in range(60)]).cuda()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1_000_000
    step = torch.tensor(0.0)
    torch._foreach_add_([step], torch.tensor(1.0))
    assert step.item() == 1
"""


@pytest.mark.nightly
def test_a_large_model_takes_little_memory_of_the_host(run):
    found = run(LARGE)
    assert found.ending.code == 0
    held = 60 * 4 * (8192 * 8192 + 8192)
    assert found.traced.prediction.components[Component.WEIGHTS] == held
