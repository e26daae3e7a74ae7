"""What a script's memory is said to be for, in whatever order it calls what it has."""

import pytest

from memcalc.advice.explain.peak import moments
from memcalc.records.model import Place
from memcalc.records.prediction import LONGER
from memcalc.records.trace import Component, Phase

ORDER = """
    import torch

    class Scaled(torch.nn.Module):
        def forward(self, row):
            return row / 2

    maker, judge = (torch.nn.Linear(256, 256).cuda() for _ in range(2))
    optimizers = [torch.optim.Adam(one.parameters()) for one in (maker, judge)]
    scaled, rows = Scaled(), torch.randn(64, 256)
    for _ in range(3):
        batch = scaled(rows).cuda()
        for loss in (lambda: judge(batch).sum(), lambda: judge(maker(batch)).sum()):
            loss().backward()
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
"""
WEIGHTS = 4 * 256 * 257


def test_models_called_after_others_and_after_transforms_of_the_host_are_weights(run):
    prediction = run(ORDER, steps=0).traced.prediction
    assert prediction.components[Component.WEIGHTS] == 2 * WEIGHTS
    assert prediction.components[Component.INPUTS] == 4 * 64 * 256


@pytest.mark.nightly
def test_what_runs_on_the_host_does_not_end_loading(run):
    measured = "import torch\n    torch.nn.Linear(256, 1)(torch.ones(256))\n"
    prediction = run(ORDER.replace("import torch\n", measured), steps=0).traced.prediction
    load = next(phase for phase in prediction.phases if phase.phase is Phase.LOAD)
    # Both models, and the first batch before it is fed.
    assert load.requested == 2 * WEIGHTS + 4 * 64 * 256


AHEAD = """
    import torch

    scaled = torch.nn.Identity()
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    aside = torch.cuda.Stream()

    def fetch():
        with torch.cuda.stream(aside):
            rows = scaled(torch.ones(64, 256, dtype=torch.uint8))
            return rows.cuda(non_blocking=True).float()

    following = fetch()
    for _ in range(3):
        torch.cuda.current_stream().wait_stream(aside)
        batch, following = following, fetch()
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
THAWED = """
    import torch
    first, second = (torch.nn.Linear(256, 256).cuda() for _ in range(2))
    first.requires_grad_(False)
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
    for step in range(7):
        first.requires_grad_(step > 4)
        second(first(torch.ones(64, 256, device="cuda"))).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
PARTS = """
    import torch

    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        for part in [torch.ones(64, 256).cuda() for _ in range(4)]:
            model(input=part).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
REPLACED = """
    import torch

    model = torch.nn.Linear(256, 256).cuda()
    model._parameters["weight"] = model.weight.detach().requires_grad_()
    for _ in range(3):
        model(torch.ones(64, 256, device="cuda")).sum().backward()
"""
COMPONENTS = {
    "tensors in the place of parameters": (
        REPLACED,
        {Component.WEIGHTS: WEIGHTS, Component.BUFFERS: 0},
    ),
    "parts of a batch that are given by keyword": (
        PARTS,
        {Component.INPUTS: 4 * 4 * 64 * 256, Component.HELD: 0},
    ),
    "batches that another stream prepares ahead": (
        AHEAD,
        {Component.INPUTS: 2 * 4 * 64 * 256, Component.COMMUNICATION: 0},
    ),
    "weights that are trained later": (
        THAWED,
        {Component.OPTIMIZER_STATE: 4 * WEIGHTS, Component.HELD: 0},
    ),
}


@pytest.mark.parametrize("what", COMPONENTS)
def test_components_of_a_script(run, what):
    script, expected = COMPONENTS[what]
    components = run(script, steps=0).traced.prediction.components
    assert {name: components.get(name, 0) for name in expected} == expected


HELD = """
    import torch

    class Loss(torch.nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model
            self.own = torch.nn.ParameterList([torch.zeros(OWN)] if OWN else [])
        def forward(self, rows):
            return self.model(rows).sum() + sum(own.sum() for own in self.own)

    model = torch.nn.Linear(256, 256).cuda()
    loss = Loss(model).cuda()
    with torch.no_grad():
        model(torch.ones(4, 256, device="cuda"))
    loss(torch.ones(4, 256, device="cuda")).backward()
"""


@pytest.mark.nightly
@pytest.mark.parametrize("own", [0, 7])
def test_weights_of_a_model_inside_of_a_loss_are_counted_once(run, own):
    inventory = run(HELD.replace("OWN", str(own)), steps=0).traced.trace.inventory
    assert inventory.numel == 256 * 257 + own


@pytest.mark.parametrize(("lengths", "said"), [((64, 64, 64), False), ((64, 8192, 64), True)])
def test_batches_that_differ_in_size_are_named(lengths, said, run):
    found = run(
        f"""
        import torch
        layer = torch.nn.Linear(64, 64).cuda()
        optimizer = torch.optim.SGD(layer.parameters())
        for length in {lengths}:
            batch = torch.ones(length, 64).cuda()
            scale = torch.tensor(2.0).cuda()
            with torch.no_grad():
                layer(torch.ones(500, 64).cuda())
            (layer(batch) * scale).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    assert any(one.startswith(LONGER) for one in found.traced.prediction.uncounted) == said


AVERAGED = """
    import torch

    model = torch.nn.Linear(256, 256).cuda()
    averaged = torch.optim.swa_utils.AveragedModel(model)
    optimizer = torch.optim.SGD(model.parameters())
    rows = torch.ones(64, 256, device="cuda")
    for _ in range(3):
        model(rows).sum().backward()
        optimizer.step()
        averaged.update_parameters(model)
        averaged(rows)
"""


def test_an_averaged_model_is_a_copy_also_where_it_is_called(run):
    trace = run(AVERAGED, steps=0).traced.trace
    found = [
        (one.module, one.bytes) for one in trace.storages if one.component is Component.WEIGHTS
    ]
    assert sorted(found) == sorted(
        (module, rounded) for module in ("", "copy of Linear.module") for rounded in (1024, 262144)
    )


LEFT = """
    import atexit, torch

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*[torch.nn.Linear(256, 256) for _ in range(4)])
            mask = torch.eye(4, dtype=torch.bool).to_sparse()
            self.register_buffer("mask", mask, persistent=False)

        def forward(self, rows):
            return self.layers(rows)

    model = Model().cuda()
    optimizer = torch.optim.SGD(model.parameters())
    for _ in range(2):
        rows = torch.ones(4096, 256, device="cuda")
        model(rows[:64]).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        model(rows).argmax(1)
    torch._C._cuda_clearCublasWorkspaces()
"""


def test_what_a_forward_without_backward_saves_is_activations(run):
    components = run(LEFT, steps=0).traced.prediction.components
    assert components[Component.ACTIVATIONS] >= 4 * 4 * 4096 * 256
    # The program lets cuBLAS free its workspaces; the sparse buffer is read as Python ends.
    assert components[Component.WORKSPACES] > 8 << 20
    assert components[Component.BUFFERS] == 4 * 2 * 8 + 4


KEPT = """
    import torch
    rows = torch.ones(2048, 256).cuda()
    saved = torch.nn.Linear(256, 256).state_dict()
    saved = {name: one.cuda() for name, one in saved.items()}
    model = torch.nn.Linear(256, 256).cuda()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(6):
        model(rows[:64]).sum().backward(retain_graph=True)
        optimizer.step()
        tried = model(rows).tanh().sum()
"""


def test_a_data_set_on_the_gpu_is_input_and_loaded_weights_and_unused_graphs_are_held(run):
    found = run(KEPT, steps=0).traced
    components = found.prediction.components
    assert components[Component.INPUTS] == 4 * 2048 * 256
    assert components[Component.HELD] == WEIGHTS
    kept = {one.kept for one in moments(found.trace, found.prediction.plan)[Phase.FORWARD].groups}
    assert "data on the GPU, held by the variable rows" in kept
    assert "held by the variable saved; backward does not free it" in kept
    assert "held by the script or a graph it keeps; backward does not free it" in kept
    assert not any(one.startswith(LONGER) for one in found.prediction.uncounted)


def test_tensors_in_objects_that_a_state_holds_are_optimizer_state(run):
    """GaLore keeps its projection in an object of its own."""
    found = run(
        """
        import torch

        class Projector:
            def __init__(self):
                self.matrix = torch.zeros(1 << 20, device="cuda")

        class Projected(torch.optim.SGD):
            def step(self):
                for parameter in self.param_groups[0]["params"]:
                    self.state[parameter].setdefault("projector", Projector())
                super().step()

        model = torch.nn.Linear(64, 64).cuda()
        optimizer = Projected(model.parameters())
        for _ in range(3):
            model(torch.randn(8, 64, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
        """
    )
    assert found.traced.prediction.components[Component.OPTIMIZER_STATE] == 2 * (4 << 20)


def test_state_that_is_loaded_between_two_steps_is_optimizer_state(run):
    found = run(
        """
        import torch
        model = torch.nn.Linear(1024, 1024, bias=False).cuda()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for step in range(6):
            rows = 8192 if step == 5 else 8
            model(torch.randn(rows, 1024, device="cuda")).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            if step == 4:
                torch.save(optimizer.state_dict(), "state.pt")
                kept = torch.load("state.pt", map_location="cuda")
                optimizer.load_state_dict(kept)
        """,
        steps=0,
    )
    components = found.traced.prediction.components
    assert components[Component.OPTIMIZER_STATE] == 4 << 20
    assert components[Component.HELD] < 1 << 20


def test_state_that_parameters_share_is_counted_once(run):
    """The tables of an 8-bit optimizer are the same for all parameters."""
    found = run(
        """
        import torch
        table = torch.zeros(256, device="cuda")

        class Tabled(torch.optim.SGD):
            def step(self):
                for parameter in self.param_groups[0]["params"]:
                    self.state[parameter]["table"] = table

        model = torch.nn.Linear(512, 512).cuda()
        optimizer = Tabled(model.parameters())
        for _ in range(3):
            model(torch.randn(8, 512, device="cuda")).sum().backward()
            optimizer.step()
        """
    )
    state = found.traced.prediction.optimizer_state
    assert [one.bytes for one in state.tensors] == [1024]


AGAIN = """
    import torch

    def train():
        model = torch.nn.Linear(256, 256).cuda()
        optimizer = torch.optim.Adam(model.parameters())
        for frozen in (True, False):
            model.weight.requires_grad_(not frozen)
            model(torch.randn(8, 256, device="cuda")).sum().backward()
            optimizer.step()

    for _ in range(3):
        train()
"""


def test_a_model_that_is_made_anew_is_counted_once_and_what_thaws_trains(run):
    prediction = run(AGAIN, steps=0).traced.prediction
    assert (prediction.parameters, prediction.trainable) == (256 * 257, 256 * 257)
    assert prediction.optimizer_state.total(Place.DEVICE) == 2 * WEIGHTS


TRAINS = """
    for step in range(5):
        loss(torch.randn(64, 256, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""
INSIDE = """
    import torch

    class Outer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(1))

        def forward(self, rows):
            return self.scale * parts[1](parts[0](rows))

    parts = [torch.nn.Linear(256, 256).cuda() for _ in range(2)]
    loss = Outer().cuda()
    optimizer = torch.optim.Adam([p for one in (loss, *parts) for p in one.parameters()])
"""
COPIES = """
    import copy, torch
    loss = torch.nn.Linear(256, 256).cuda()
    average = copy.deepcopy(loss)
    copies = [copy.deepcopy(loss).cpu(), copy.deepcopy(average).half().cuda().cpu()]
    optimizer = torch.optim.Adam(loss.parameters())
"""
TAUGHT = """
    import torch
    teacher, student = (torch.nn.Linear(256, 256).cuda() for _ in range(2))
    loss = lambda rows: student(rows) - teacher(rows).detach()
    optimizer = torch.optim.Adam(student.parameters())
"""
TENSORS = """
    import torch
    weights = [torch.randn(256, 256, device="cuda", requires_grad=True) for _ in range(2)]
    loss = lambda rows: rows @ weights[0] @ weights[1]
    optimizer = torch.optim.Adam(weights)
"""
GROWN = """
    import torch
    weights = [torch.nn.Parameter(torch.randn(256, 256, device="cuda"))]
    optimizer = torch.optim.Adam(weights)

    def loss(rows):
        found = rows @ weights[0]
        if len(optimizer.state) and weights[0].shape[1] < 1024:
            old = weights.pop()
            state = optimizer.state.pop(old)
            weights.append(torch.nn.Parameter(torch.cat([old, old], 1).detach()))
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.cat([state[name], state[name]], 1)
            optimizer.state[weights[0]] = state
            optimizer.param_groups[0]["params"] = weights
            found = rows @ weights[0]
        return found
"""
ON_META = """
    import torch
    with torch.device("meta"):
        model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Linear(256, 256))
    model(torch.empty(4, 256, device="meta"))
    model.to_empty(device="cuda")
    loss = model
    optimizer = torch.optim.Adam(model.parameters())
"""
ONE = 256 * 257
BY_TURNS = """
    import torch
    from torch.nn.utils.parametrizations import spectral_norm

    class Maker(torch.nn.Linear): ...
    class Judge(torch.nn.Sequential): ...

    maker, judge = Maker(256, 256).cuda(), Judge(spectral_norm(torch.nn.Linear(256, 256).cuda()))
    loss = lambda rows: judge(maker(rows))
    optimizer = torch.optim.Adam([*maker.parameters(), *judge.parameters()])
"""


def test_every_model_that_is_called_is_named_and_no_part_of_one(run):
    prediction = run(BY_TURNS + TRAINS, steps=0).traced.prediction
    assert prediction.head == "Maker + Judge"
    assert prediction.parameters == 2 * ONE


@pytest.mark.parametrize(
    ("script", "parameters", "trained"),
    [
        (INSIDE, 2 * ONE + 1, 2 * ONE + 1),
        (COPIES, 2 * ONE, ONE),
        pytest.param(TAUGHT, 2 * ONE, ONE, marks=pytest.mark.nightly),
        pytest.param(TENSORS, 2 * 256 * 256, 2 * 256 * 256, marks=pytest.mark.nightly),
        (GROWN, 4 * 256 * 256, 4 * 256 * 256),
        pytest.param(ON_META, 2 * ONE, 2 * ONE, marks=pytest.mark.nightly),
    ],
)
def test_each_parameter_of_every_model_on_the_gpu_is_counted_once(run, script, parameters, trained):
    prediction = run(script + TRAINS, steps=0).traced.prediction
    held = prediction.components
    assert (prediction.parameters, prediction.trainable) == (parameters, trained)
    assert held[Component.WEIGHTS] == 4 * parameters
    assert held[Component.OPTIMIZER_STATE] == 8 * trained


RELOADED = """
    import torch
    model = torch.nn.Linear(512, 1024).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    torch.save(torch.randn(1024, 512), "rows.pt")
    data = torch.load("rows.pt", map_location="cuda")
    for step in range(4):
        rows = data[64 * step : 64 * (step + 1)]
        model(rows).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.save({"model": model.state_dict()}, "last.pt")
    kept = [torch.load("last.pt", map_location="cuda") for _ in range(8)]
"""


def test_a_checkpoint_on_the_gpu_is_no_batch_and_a_data_set_is(run):
    prediction = run(RELOADED, steps=0).traced.prediction
    assert prediction.components[Component.HELD] == 8 * 4 * 513 * 1024
    assert prediction.components[Component.INPUTS] == 4 * 1024 * 512
    assert not any(one.startswith(LONGER) for one in prediction.uncounted)


ODD = """
import types, sys, torch
class Counted(tuple):
    def __len__(self):
        raise NotImplementedError
    __iter__ = values = __len__
class Late(types.ModuleType):
    def __getattr__(self, name):
        raise ImportError(name)
class Proxy:
    __slots__ = ()
    def __getattr__(self, name):
        raise RuntimeError(name)
sys.modules["late"] = Late("late")
counted, proxy = Counted((1, 2)), Proxy()
class Net(torch.nn.Module):
    counted, proxy = counted, proxy
    def __init__(self):
        super().__init__()
        self.linear, self.held = torch.nn.Linear(8, 8), (Counted(), Proxy())
    def forward(self, x):
        return self.linear(x)
net = Net().cuda()
optimizer = torch.optim.SGD(net.parameters())
for _ in range(3):
    optimizer.zero_grad()
    net(torch.ones(2, 8, device="cuda")).sum().backward()
    optimizer.step()
"""


def test_looking_at_variables_calls_no_code_of_the_programs(run):
    assert run(ODD).ending.code == 0


DELEGATES = """
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            # Here it has no inner module yet, and asking for any attribute would not end.
            inner(torch.zeros(1, 256, device="cuda"))
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

    model = Wrapped(torch.nn.Linear(256, 256).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model.inner(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_a_module_is_known_without_asking_it_for_attributes(run):
    found = run(DELEGATES, steps=0)
    assert found.ending.code == 0
    assert found.traced.prediction.parameters == 256 * 257
