"""Models and optimizers of somebody's own, by module and by file."""

import pytest
import torch

from memcalc import imports, registry
from memcalc.catalog import models
from memcalc.catalog.plan import make
from memcalc.errors import EstimateError, UsageError
from memcalc.estimation.engine import engine
from memcalc.estimation.question import find_user_code
from memcalc.records.prediction import Prediction
from memcalc.registry.build import build
from memcalc.workload.model import report_by_name
from memcalc.workload.prepare import prepare

CODE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3)

    def forward(self, x, scale=1.0):
        return self.conv(x).mean() * scale

class Slow(torch.optim.SGD):
    def __init__(self, params, extra=1):
        super().__init__(params, lr=0.1, momentum=0.9)

class Again(torch.optim.SGD):
    def step(self, closure):
        return super().step(closure)

class Types(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.turns = torch.nn.Parameter(torch.zeros(4, 4, dtype=torch.complex64))
        self.half = torch.nn.Linear(4, 4).half()
        self.double = torch.nn.Linear(4, 4).double()
        self.plain = torch.nn.Linear(4, 4)

    def forward(self, x):
        return (x.to(torch.complex64) @ self.turns).abs().sum()

def compiled():
    return torch.compile(Net())

class Chooses(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mean = torch.nn.Linear(8, 8)
        self.sizes = torch.tensor([2, 0, 5])
        self.idle = torch.nn.Linear(512, 512, bias=False)

    def forward(self, x):
        mean = self.mean(x)
        drawn = torch.distributions.Normal(mean, mean.exp(), validate_args=True).rsample()
        rows = self.sizes.cuda().nonzero()
        assert rows.flatten().tolist() == [0, 2], "values of the code itself are read back"
        return drawn.repeat(int(self.sizes.cuda().sum()), 1).mean()

def no_net():
    raise RuntimeError("weights are missing")
"""


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    path = tmp_path / "own_net.py"
    path.write_text(CODE)
    return path


def program(model, *inputs, **settings):
    plan = make({"model": model, "inputs": list(inputs), **settings})
    return prepare(plan, registry.of(plan))


@pytest.mark.parametrize("name", ["own_net:Net", "own_net.py:Net", "./own_net.py:Net"])
def test_a_model_is_found_in_a_module_and_in_a_file(file, name):
    assert models.find(name).origin == "callable"
    made = program(name, "x=float32[5,3,8,8]")
    assert made.plan.batch == 5
    assert type(made.model).__name__ == "Net"


@pytest.mark.parametrize(
    ("inputs", "said"),
    [
        (["z=float32[5,3,8,8]"], "unexpected keyword argument 'z'"),
        ([], "missing a required argument: 'x'"),
    ],
)
def test_inputs_that_the_forward_does_not_take_are_refused_by_name(file, inputs, said):
    with pytest.raises(UsageError, match=said) as caught:
        program("own_net:Net", *inputs)
    assert "it takes x, scale" in str(caught.value)


def test_a_failure_inside_the_model_says_first_what_its_code_said():
    said = r"^own:net: expected 3 channels \(ValueError in conv"
    where = " in conv, at convolution"
    with pytest.raises(EstimateError, match=said), report_by_name("own:net", lambda: where):
        raise ValueError("expected 3 channels")
    with pytest.raises(ValueError, match="ours"), report_by_name("gpt2"):
        raise ValueError("ours")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own_net:no_net", "weights are missing"),
        ("own_net:nothing", "own_net has no nothing"),
        ("elsewhere.py:Net", "There is no file elsewhere.py"),
        ("elsewhere:Net", "Cannot import elsewhere"),
    ],
)
def test_code_that_cannot_be_had_is_one_sentence(file, name, said):
    with pytest.raises(UsageError, match=said):
        program(name, "x=float32[5,3,8,8]")


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("torch.optim.AdamW", "adamw"),
        ("torch.optim.adamw.AdamW", "adamw"),
        ("torch.optim:SGD", "sgd"),
        ("bitsandbytes.optim.AdamW8bit", "adamw8bit"),
        ("memcalc.optim.AdamW8bit", "memcalc.adamw8bit"),
    ],
)
def test_a_class_of_the_registry_finds_its_row(name, row):
    assert registry.find(name, {}).row.name == row


@pytest.mark.parametrize("name", ["own_net:Slow", "own_net.Slow", "own_net.py:Slow"])
def test_any_other_class_is_built_from_its_own_code(file, name):
    choice = registry.find(name, {"extra": 2})
    assert choice.row.foreign
    assert choice.traceable
    assert not choice.row.closed_form
    assert "own code" in choice.row.unknown
    assert type(build(choice, torch.nn.Linear(2, 2))).__name__ == "Slow"
    assert find_user_code(make({"model": "gpt2", "optim": name})) == name


def test_a_class_that_is_no_optimizer_is_refused(file):
    with pytest.raises(UsageError, match="own_net:Net"):
        build(registry.find("own_net:Net", {}), torch.nn.Linear(2, 2))


def test_an_optimizer_that_steps_with_a_closure_is_sent_to_its_script(file):
    with pytest.raises(UsageError, match=r"closure.*memcalc simulate"):
        build(registry.find("own_net:Again", {}), torch.nn.Linear(2, 2))


def test_under_the_trainer_adafactor_is_that_of_transformers():
    named = {
        loop: registry.of(
            make({"model": "gpt2", "optim": "adafactor", "loop": loop})
        ).row.implementation
        for loop in ("plain", "accelerate", "trainer")
    }
    assert named == {
        "plain": "torch.optim.Adafactor",
        "accelerate": "torch.optim.Adafactor",
        "trainer": "transformers.Adafactor",
    }


def test_what_names_no_code_is_not_taken_for_it():
    assert not any(map(imports.is_named, ("gpt2", "a/b", "a:b:c", ":x", "x:", "a b:c")))


def test_a_model_keeps_the_types_that_its_code_gives_it(file):
    made = dict(program("own_net:Types", "x=float32[5,4]").model.named_parameters())
    assert {name: made[name].dtype for name in ("turns", "half.weight", "double.weight")} == {
        "turns": torch.complex64,
        "half.weight": torch.float16,
        "double.weight": torch.float64,
    }
    made = dict(
        program("own_net:Types", "x=float32[5,4]", precision="bf16").model.named_parameters()
    )
    assert made.pop("turns").dtype is torch.complex64
    assert {one.dtype for one in made.values()} == {torch.bfloat16}


@pytest.mark.nightly
def test_a_compiled_model_is_compiled_for_real(file):
    """Fusing keeps fewer results; the weights stay what they are."""
    of = {"inputs": ["x=float32[5,3,8,8]"], "gpu": "t4"}
    eager, compiled = (
        engine.predict(make({"model": f"own_net.py:{name}", **of})) for name in ("Net", "compiled")
    )
    assert eager.components["weights"] == compiled.components["weights"]
    assert 0 < compiled.peak.allocated <= eager.peak.allocated


def test_a_model_that_decides_by_values_on_the_gpu_decides_as_it_would_there(file):
    plan = make({"model": "own_net:Chooses", "inputs": ["x=float32[4096,8]"], "gpu": "t4"})
    answer = engine.predict(plan)
    assert isinstance(answer, Prediction), answer
    assert any("return real values" in said for said in answer.assumptions)
    assert answer.assumptions[0].startswith("1.0 MiB of weights got no gradient here")
