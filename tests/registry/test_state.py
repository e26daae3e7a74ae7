"""The closed form of every optimizer against the real one, in bytes, after real steps."""

import json
import pathlib
import warnings

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from memcalc import registry
from memcalc.errors import EstimateError, UsageError
from memcalc.measure.process import read_state
from memcalc.records.model import Parameter, Place
from memcalc.records.plan import Plan
from memcalc.registry.build import build
from memcalc.workload import loops
from memcalc.workload.inventory import take
from memcalc.workload.optimizers import InBackward

EVIDENCE = pathlib.Path(__file__).parent.parent.parent / "evidence"


class ScaledWords(torch.nn.Embedding):
    """An embedding of a model's own, such as those of BART, Gemma and OPT."""


class Everything(torch.nn.Module):
    """Large, small, exact and odd sizes; a scalar; tied, frozen and embedded tensors."""

    def __init__(self, only_matrices: bool = False) -> None:
        super().__init__()
        self.large = torch.nn.Parameter(torch.randn(400, 300))
        self.exact = torch.nn.Parameter(torch.randn(64, 64))
        self.odd = torch.nn.Parameter(torch.randn(71, 67))
        self.cube = torch.nn.Parameter(torch.randn(5, 40, 30))
        self.tokens = torch.nn.Embedding(100, 50)
        self.tied = torch.nn.Linear(50, 100, bias=False)
        self.tied.weight = self.tokens.weight
        self.places = ScaledWords(90, 50)
        self.frozen = torch.nn.Parameter(torch.randn(80, 80), requires_grad=False)
        if only_matrices:
            del self.cube
        else:
            self.small = torch.nn.Parameter(torch.randn(4095))
            self.bias = torch.nn.Parameter(torch.randn(7))
            self.scalar = torch.nn.Parameter(torch.tensor(1.0))
        self.register_buffer("positions", torch.arange(10))


ROWS = [
    row
    for row in registry.rows()
    if row.layout is not None
    and row.package in ("torch", "bitsandbytes", "transformers", "memcalc")
    and row.name != "sparseadam"
    # Its double state asks for managed memory even on the CPU, where there is none.
    and "pagedademamix" not in row.name
    and not (row.refuse is not None and row.refuse({**row.defaults}))
]
VARIANTS = [
    ("adamw", {"amsgrad": True}),
    ("adamw", {"foreach": True}),
    ("adamw", {"foreach": False}),
    ("sgd", {"momentum": 0.9}),
    ("sgd", {"momentum": 0.9, "nesterov": True}),
    ("rmsprop", {"momentum": 0.5}),
    ("rmsprop", {"centered": True}),
    ("rmsprop", {"centered": True, "momentum": 0.5}),
    ("adam8bit", {"min_8bit_size": 100}),
    ("adamw8bit", {"min_8bit_size": 100_000}),
    ("adamw8bit", {"32bit": "large,odd"}),
    ("lamb", {"max_unorm": 0.0}),
    ("transformers.adafactor", {"beta1": 0.9}),
]


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        optimizer.zero_grad()
        loss = sum((p.float() ** 2).sum() for p in model.parameters() if p.requires_grad)
        loss.backward()
        optimizer.step()


def check(name: str, args: dict, dtype: torch.dtype, loop: str = "plain") -> None:
    choice = registry.find(name, args)
    torch.manual_seed(0)
    model = Everything(only_matrices=name == "muon").to(dtype)
    predicted = choice.state(take(model, "m", "t").parameters, loop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = loops.find(loop)
        optimizer = build(
            choice, model, groups=found.groups(model, 0.0), wide_embeddings=found.wide_embeddings
        )
        train(model, optimizer)
    real = read_state(optimizer)
    # On the CPU managed memory falls back to ordinary memory, so places are summed up.
    total = sum(tensor.bytes for tensor in predicted.tensors)
    assert real.device + real.host + real.managed == total


# The states of bitsandbytes are as wide whatever the parameters are, PyTorch's as wide as they.
AT_NIGHT = ("bitsandbytes", "torch")
CASES = [
    pytest.param(row, dtype, id=f"{row.name}-{dtype}", marks=pytest.mark.nightly if later else ())
    for row in ROWS
    for dtype, later in ((torch.float32, False), (torch.bfloat16, row.package in AT_NIGHT))
]


@pytest.mark.parametrize(("row", "dtype"), CASES)
def test_state_is_the_real_optimizers_to_the_byte(row, dtype):
    if row.name == "memcalc.adamw_bf16" and dtype is not torch.bfloat16:
        pytest.skip("it trains bf16 parameters only")
    check(row.name, {}, dtype)


@pytest.mark.parametrize(("name", "args"), VARIANTS, ids=str)
def test_arguments_that_change_state_change_it_alike(name, args):
    check(name, args, torch.float32)


@pytest.mark.parametrize("name", ["adam8bit", "adamw_8bit", "lion_8bit", "ademamix_8bit"])
def test_the_trainer_keeps_embeddings_in_32_bit(name):
    check(name, {}, torch.float32, loop="trainer")


@given(
    shapes=st.lists(
        st.lists(st.integers(1, 90), min_size=0, max_size=3).map(tuple), min_size=1, max_size=4
    ),
    name=st.sampled_from(
        [
            "adamw",
            "adafactor",
            "adam8bit",
            "lion8bit",
            "ademamix8bit",
            "sgd",
            "memcalc.adamw8bit",
            "memcalc.adamw_bf16",
        ]
    ),
    threshold=st.sampled_from([1, 256, 4096]),
)
def test_any_shapes_give_the_real_bytes(shapes, name, threshold):
    dtype = torch.bfloat16 if name == "memcalc.adamw_bf16" else torch.float32
    model = torch.nn.Module()
    for index, shape in enumerate(shapes):
        model.register_parameter(f"p{index}", torch.nn.Parameter(torch.randn(shape, dtype=dtype)))
    choice = registry.find(name, {"min_8bit_size": threshold} if name.endswith("8bit") else {})
    optimizer = build(choice, model)
    train(model, optimizer)
    real = read_state(optimizer)
    total = sum(t.bytes for t in choice.state(take(model, "m", "t").parameters).tensors)
    assert real.device + real.host == total


def distilbert() -> list[Parameter]:
    from memcalc.catalog import inventory, models
    from memcalc.workload import tasks

    source = models.find("distilbert-base-cased")
    return list(inventory.load(source, tasks.choose(source, "auto").name).parameters)


@pytest.mark.parametrize(
    ("name", "args", "loop", "device", "host", "managed"),
    [
        ("adamw", {}, "plain", 526_264_336, 416, 0),
        ("adamw_torch_fused", {}, "plain", 526_264_752, 0, 0),
        ("sgd", {"momentum": 0.9}, "plain", 263_132_168, 0, 0),
        ("adafactor", {}, "plain", 714_016, 416, 0),
        ("adam8bit", {}, "plain", 134_004_336, 0, 0),
        ("adamw_8bit", {}, "trainer", 269_269_008, 0, 0),
        ("paged_adamw8bit", {}, "plain", 2_565_744, 0, 131_438_592),
        ("memcalc.adamw8bit", {}, "plain", 134_004_336, 0, 0),
    ],
)
def test_distilbert_holds_the_bytes_that_were_seen(name, args, loop, device, host, managed):
    state = registry.find(name, args).state(distilbert(), loop)
    assert state.total(Place.DEVICE) == device
    assert state.total(Place.HOST) == host
    assert state.total(Place.MANAGED) == managed


def test_every_optimizer_name_of_transformers_is_accepted():
    from transformers.training_args import OptimizerNames

    for name in OptimizerNames:
        assert registry.find(name.value, {}).row.implementation


def test_no_two_optimizers_share_a_name():
    names = [name for row in registry.rows() for name in (row.name, *row.aliases)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("adamm", {}, "did you mean adam"),
        ("adam8bit", {"amsgrad": True}, "amsgrad"),
        ("ademamix32bit", {}, "2075"),
        ("adamw", {"momentun": 1}, "takes"),
        ("adamw", {"amsgrad": 3}, "true or false"),
        ("adam8bit", {"min_8bit_size": "many"}, "number"),
        ("adam8bit", {"optim_bits": 4}, "8 or 32"),
        ("adam8bit", {"optim_bits": 32}, "use adam32bit"),
        ("pagedlion32bit", {"optim_bits": 8}, "use pagedlion8bit"),
        ("pagedadamw", {"is_paged": False}, "use bitsandbytes.adamw"),
        ("lion", {"eps": 1e-6}, "takes"),
        ("adamw_torch_8bit", {"amsgrad": True}, "torchao 0.18"),
        ("adamw_anyprecision", {"momentum_dtype": "int8"}, "not float32, bfloat16 or float16"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(name, args, words):
    with pytest.raises(UsageError, match=words):
        registry.find(name, args)


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("adam8bit", {"optim_bits": 8}),
        ("adam32bit", {"optim_bits": 32}),
        ("bitsandbytes.adam", {"optim_bits": 8}),
        ("lion", {"optim_bits": 8}),
        ("lion8bit", {"optim_bits": 8}),
        ("pagedadam8bit", {"is_paged": True}),
    ],
)
def test_a_width_that_is_said_again_is_the_width_of_the_class(name, args):
    check(name, args, torch.float32)


def plan_of(precision, **more):
    return Plan(model="distilbert-base-cased", precision=precision, **more)


@pytest.mark.parametrize(
    ("name", "args", "words"),
    [
        ("bitsandbytes.sgd", {"momentum": 0}, "SGD refuses this: SGD without momentum is not"),
        ("bitsandbytes.rmsprop", {"centered": True}, "Centered RMSprop is not supported"),
        ("sgd8bit", {"is_paged": True}, "unexpected keyword argument 'is_paged'"),
    ],
)
def test_bitsandbytes_itself_says_what_it_refuses(name, args, words):
    with pytest.raises(UsageError, match=words):
        build(registry.find(name, args), torch.nn.Linear(4, 4))


def extra_runs():
    recorded = json.loads((EVIDENCE / "extra_optimizers.json").read_text())
    return [(run, recorded["shapes"]) for run in recorded["runs"]]


@pytest.mark.parametrize(
    ("run", "shapes"),
    extra_runs(),
    ids=lambda r: f"{r['optimizer']}-{r['args']}-{r['dtype']}" if isinstance(r, dict) else "",
)
def test_optimizers_of_other_packages_hold_what_was_recorded(run, shapes):
    model = torch.nn.Module()
    for index, shape in enumerate(shapes):
        value = torch.zeros(shape, dtype=getattr(torch, run["dtype"]))
        model.register_parameter(f"p{index}", torch.nn.Parameter(value))
    state = registry.find(run["optimizer"], run["args"]).state(take(model, "m", "t").parameters)
    assert {place: state.total(Place(place)) for place in run["state"]} == run["state"]


def test_the_trainer_asks_torchao_for_blocks_of_256_in_4_bit_too():
    choice, parameters = registry.find("adamw_torch_4bit", {}), distilbert()
    scales = {
        loop: sum(t.bytes for t in choice.state(parameters, loop).tensors if "scale" in t.name)
        for loop in ("plain", "trainer")
    }
    assert scales["plain"] == 2 * scales["trainer"]


def test_anyprecision_adamw_keeps_the_dtypes_it_is_given():
    def totals(**args):
        return registry.find("adamw_anyprecision", args).state(distilbert()).total(Place.DEVICE)

    n = sum(p.numel for p in distilbert() if p.trainable)
    assert totals() == 8 * n
    assert totals(momentum_dtype="bfloat16", variance_dtype="bfloat16") == 4 * n
    assert totals(use_kahan_summation=True) == 10 * n


def test_a_state_without_a_closed_form_is_unknown_not_zero():
    with pytest.raises(EstimateError, match="not known"):
        registry.find("lbfgs", {}).state(distilbert())


@pytest.mark.parametrize("name", ["adamw8bit", "paged_adamw_8bit", "lion_8bit"])
def test_a_checkpoint_loaded_onto_another_device_brings_copies_of_the_code_maps(name):
    choice = registry.find(name, {})
    model = Everything()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        optimizer = build(choice, model)
        train(model, optimizer)
        saved = optimizer.state_dict()
        # As a device to move to, meta is as good as any.
        with torch.device("meta"):
            remote = Everything()
        elsewhere = build(choice, remote)
        elsewhere.load_state_dict(saved)
    fresh, loaded = (
        choice.state(take(model, "m", "t").parameters, reloaded=again) for again in (False, True)
    )
    assert read_state(elsewhere).device == loaded.total(Place.DEVICE)
    assert loaded.total(Place.MANAGED) == 0
    assert loaded.total(Place.DEVICE) > fresh.total(Place.DEVICE) + fresh.total(Place.MANAGED)


def test_an_optimizer_for_each_parameter_has_its_own_code_maps():
    choice = registry.find("adamw8bit", {})
    torch.manual_seed(0)
    model = Everything()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = InBackward(trained, lambda p: build(choice, model, only=p))
    loss = sum((p.float() ** 2).sum() for p in trained)
    loss.backward()
    predicted = choice.state(take(model, "m", "t").parameters, own_maps=True)
    assert all(p.grad is None for p in trained)
    real = read_state(optimizer)
    assert real.device + real.host == predicted.total(Place.DEVICE)
