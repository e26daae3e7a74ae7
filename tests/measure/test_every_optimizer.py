"""Real training with every optimizer that runs on a CPU, against its estimate, in bytes.

The runs share one process, as users' never do; that ``memcalc measure`` measures the same is
tested beside.
"""

import pytest

from memcalc import registry
from memcalc.accuracy.compare import compare
from memcalc.catalog.plan import make
from memcalc.estimation.estimate import answers
from memcalc.measure.runs.run import Options, measure
from memcalc.optim.blockwise import code_tables
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Phase
from tests.measure import models

EXACT = ("weights", "gradients", "optimizer state")
PHASES = [phase.value for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP, Phase.ZERO_GRAD)]
NUMBERS = 256
"""Bytes of single numbers that operators make of Python's."""
MORE = {
    "muon": ("its products are in bf16, for which oneDNN makes buffers of its own", 0.25),
    "memcalc.adamw_bf16": ("oneDNN's products in bf16, as above", 0.25),
    "memcalc.adam8bit": ("making the tables of codes takes 0.5 MiB, once", 0.5),
    "memcalc.adamw8bit": ("the same", 0.5),
}
"""What real runs take beside, and which share of a peak of this small model that may be."""


def runs_on_cpu(row) -> bool:
    own = row.package in ("torch", "bitsandbytes", "transformers", "memcalc")
    # SparseAdam wants sparse gradients; L-BFGS and the like have no closed form.
    return own and row.closed_form and not row.broken and row.name != "sparseadam"


def _model(name: str) -> str:
    if name == "muon":
        return "Matrices"
    # Wide enough for paged states; those of AdEMAMix cannot be had without a GPU.
    return "Wide" if "paged" in name and "ademamix" not in name else "Small"


def plan_of(name: str):
    return make(
        {
            "model": f"zoo:{_model(name)}",
            "inputs": models.INPUT,
            "batch": 4,
            "target": "cpu",
            "optim": name,
            "precision": "bf16" if name == "memcalc.adamw_bf16" else "fp32",
        }
    )


NAMES = [row.name for row in registry.rows() if runs_on_cpu(row)]


BY_DAY = {*NAMES[::10], *MORE}
_CASES = [n if n in BY_DAY else pytest.param(n, marks=pytest.mark.nightly) for n in NAMES]


@pytest.fixture(scope="module", autouse=True)
def _models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    models.write(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        yield


@pytest.mark.filterwarnings("ignore:Paged optimizers are not supported on CPU")
@pytest.mark.parametrize("name", _CASES)
def test_what_a_real_run_holds_is_what_was_estimated_to_the_byte(name):
    (prediction,) = answers([plan_of(name)], use_cache=False)
    assert isinstance(prediction, Prediction), prediction
    # Made once for each process, and a user's has one optimizer.
    code_tables.cache_clear()
    measured = measure(plan_of(name), Options(device="cpu", steps=2))
    errors = {item.name: item.error for item in compare(prediction, measured)}
    assert {part: errors[part] for part in EXACT} == dict.fromkeys(EXACT, 0)
    _, share = MORE.get(name, ("", 0))
    for item in compare(prediction, measured):
        if item.name.removesuffix(" requested") in PHASES:
            assert abs(item.error) <= max(NUMBERS, share * item.measured), item


def test_nearly_every_optimizer_is_there():
    assert len(NAMES) >= 50
