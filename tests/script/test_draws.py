"""What a script draws on the host does not depend on whether its weights are filled."""

import pytest
import torch
from transformers import BertConfig, BertForMaskedLM, BertForSequenceClassification

from memcalc.script.draws import Draws
from memcalc.script.patches import Patches
from tests.script.real import run as real_script

_aten = torch.ops.aten


@pytest.fixture
def draws():
    patches, said = Patches(), []
    draws = Draws(said.append)
    draws.install(patches)
    yield draws
    patches.undo()
    assert not said


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("numel", [3, 1003, (1 << 20) + 3, (2 << 20) + 100])
@pytest.mark.parametrize("func", [_aten.normal_.default, _aten.uniform_.default])
def test_as_many_numbers_are_drawn_as_weights_take(draws, func, numel, dtype):
    torch.manual_seed(1)
    func(torch.empty(numel, dtype=dtype))
    wanted = torch.rand(4)
    torch.manual_seed(1)
    draws.skipped(func, (torch.empty(numel, dtype=dtype),), {})
    draws.settle()
    assert torch.equal(torch.rand(4), wanted)


def test_nothing_is_drawn_before_a_new_seed(draws):
    draws.skipped(_aten.normal_.default, (torch.empty(1 << 20),), {})
    torch.manual_seed(2)
    draws.settle()
    found = torch.rand(4)
    torch.manual_seed(2)
    assert torch.equal(found, torch.rand(4))


def test_whoever_asks_for_the_state_gets_that_after_the_draws(draws):
    torch.manual_seed(3)
    torch.empty(100).normal_()
    wanted = torch.get_rng_state()
    torch.manual_seed(3)
    draws.skipped(_aten.normal_.default, (torch.empty(100),), {})
    assert torch.equal(torch.get_rng_state(), wanted)


FINE_TUNED = """
import json, sys, torch, transformers
transformers.logging.set_verbosity_error()
torch.manual_seed(0)
model = transformers.AutoModelForSequenceClassification.from_pretrained(
    "saved", num_labels=5, ignore_mismatched_sizes=True
)
with open(sys.argv[1], "w") as file:
    json.dump(torch.randperm(64).tolist(), file)
"""


@pytest.mark.parametrize(
    "saved",
    [BertForMaskedLM, pytest.param(BertForSequenceClassification, marks=pytest.mark.nightly)],
)
def test_what_a_checkpoint_lacks_is_drawn_before_the_order_of_data(run, forked, tmp_path, saved):
    config = BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
    )
    saved(config).save_pretrained(tmp_path / "saved")
    run(FINE_TUNED, "simulated.json")
    forked(real_script, FINE_TUNED, str(tmp_path), "real.json")
    (tmp_path / "saved" / "model.safetensors").unlink()
    run(FINE_TUNED, "without.json")
    simulated, real, without = (
        (tmp_path / f"{name}.json").read_text() for name in ("simulated", "real", "without")
    )
    assert simulated == without == real


PLACES = """
import torch
for place in ("cuda", "cpu", "meta"):
    with torch.device(place):
        assert torch.tensor([1.0]).device.type == torch.get_default_device().type == place
        assert torch.tensor([1.0], device="cpu").device.type == "cpu"
    torch.set_default_device(place)
    assert torch.tensor([]).device.type == place
    torch.set_default_device(None)
assert torch.tensor([0], device=0).device == torch.device("cuda:0")
held = torch.cuda.memory_reserved()
assert held == 2 << 20, held
"""


def test_a_tensor_is_made_where_the_script_says(run):
    assert run(PLACES).ending.code == 0


TRUNCATED = """
import json, sys, torch
torch.manual_seed(0)
layer = torch.nn.Linear(500, 700)
torch.nn.init.trunc_normal_(layer.weight)
if "real.json" not in sys.argv:
    layer.cuda()
with open(sys.argv[1], "w") as file:
    json.dump(torch.randperm(64).tolist(), file)
"""


def test_numbers_that_are_drawn_until_none_is_too_large_come_before_the_order_of_data(
    run, forked, tmp_path
):
    found = run(TRUNCATED, "simulated.json")
    forked(real_script, TRUNCATED, str(tmp_path), "real.json")
    simulated, real = ((tmp_path / f"{name}.json").read_text() for name in ("simulated", "real"))
    assert simulated == real
    # A whole initialisation is no read of the script's.
    assert not any("weights on the host" in said for said in found.traced.prediction.assumptions)
