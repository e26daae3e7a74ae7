"""``memcalc fit`` on real models: full estimates at the answer and one above agree with it."""

import json
import pathlib

import pytest
from msgspec.structs import replace

import memcalc
from memcalc.catalog import gpus, models
from memcalc.errors import UsageError
from memcalc.estimation import estimate as api
from memcalc.estimation.client import Client
from memcalc.estimation.fits import device_of
from memcalc.estimation.replays import on_device
from memcalc.records.prediction import FitVerdict
from memcalc.report import fitted, saved
from memcalc.report.blocks import markdown, terminal


@pytest.fixture
def cli(request):
    # The name of this fixture is that of the package, which is imported above.
    return request.getfixturevalue("memcalc")


PLANS = {
    "distilbert-base-cased": {"gpu": "t4", "seq": 128, "find": ("batch", "seq", "grid")},
    "gpt2": {"gpu": "t4", "precision": "amp-fp16", "find": ("batch",)},
}


SMALL = {"distilbert-base-cased": {"n_layers": 2}, "gpt2": {"n_layer": 2}}


@pytest.fixture(scope="module", params=["small", pytest.param("whole", marks=pytest.mark.nightly)])
def found(request, shared, once):
    """An answer for each model, by its bundled name."""
    answers = {}
    with once("fit"):
        for name, settings in PLANS.items():
            model = name
            if request.param == "small":
                model = str(shared / f"small {name}.json")
                config = {**models.find(name).config, **SMALL[name]}
                pathlib.Path(model).write_text(json.dumps(config))
            answers[name] = memcalc.fit(model, **settings)
    return answers


def points(found):
    for answer in found.values():
        for limit in answer.limits:
            for probe in (limit.best, limit.above):
                if probe is not None:
                    yield (
                        replace(answer.plan, batch=probe.batch, seq=probe.seq),
                        probe,
                    )


def test_full_estimates_fit_at_the_answer_and_not_one_above(found):
    asked = list(points(found))
    fresh = api.answers([plan for plan, _ in asked], use_cache=False)
    for (plan, probe), prediction in zip(asked, fresh, strict=True):
        assert prediction.fit == probe.fit, plan
    verdicts = [probe.fit.verdict is FitVerdict.FITS for _, probe in asked]
    assert verdicts == [True, False, True, True, False]
    # DistilBERT's sequence ends where its positions do.
    assert asked[2][1].seq == 512


def test_the_grid_agrees_with_the_limit(found):
    answer = found["distilbert-base-cased"]
    limit = answer.limits[0].best.batch
    row = answer.grid.cells[answer.grid.seqs.index(128)]
    assert [cell.fit.fits for cell in row] == [batch <= limit for batch in answer.grid.batches]


def test_every_format_holds_the_answer(found):
    answer = found["distilbert-base-cased"]
    batch = answer.limits[0].best.batch
    table = terminal(fitted.blocks(answer), width=80)
    assert max(map(len, table.splitlines())) <= 80
    assert f"largest batch at 128 tokens: {batch}" in table
    assert f"largest batch at 128 tokens: {batch}" in markdown(fitted.blocks(answer))
    data = json.loads(saved.as_json(answer))
    assert data["kind"] == "fit"
    assert data["limits"][0]["best"]["batch"] == batch
    assert data["limits"][0]["best"]["fit"]["verdict"] == "fits"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "--gpu"),
        ({"gpu": "t4", "target": "cpu"}, "target cpu"),
        ({"gpu": "t4", "inputs": ("x=float32[2]",)}, "--input"),
        ({"gpu": "t4", "find": ("speed",)}, "speed"),
        ({"gpu": "nope"}, "nope"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_sentence(settings, said):
    with pytest.raises(UsageError, match=said):
        memcalc.fit("gpt2", **settings)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--gpu", "t4", "--optim", "adamw,sgd"], "one optimizer"),
        (["--gpu", "t4", "--find", "speed"], "batch, seq"),
        (["--gpu", "t4", "--format", "csv"], "table, json or markdown"),
        (["--memory", "10"], "not a size"),
    ],
)
def test_the_command_line_refuses_with_exit_code_2(arguments, said, cli):
    done = cli("fit", "gpt2", *arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


LLAMA = {
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "max_position_embeddings": 16384,
}
MISTRAL = {**LLAMA, "model_type": "mistral", "sliding_window": 96}


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("config", "settings"),
    [
        (LLAMA, {"generate": 8, "memory": 800 << 20, "find": ("batch",)}),
        (LLAMA, {"generate": 2500, "memory": 800 << 20, "find": ("batch", "seq")}),
        (MISTRAL, {"generate": 400, "seq": 64, "memory": 700 << 20, "find": ("batch",)}),
        (LLAMA, {"inference": True, "memory": 900 << 20, "find": ("batch",)}),
    ],
)
def test_what_generates_is_found_with_few_runs_and_agrees_with_estimates(
    config, settings, tmp_path
):
    model = tmp_path / "generates.json"
    model.write_text(json.dumps(config))
    found = memcalc.fit(str(model), gpu="t4", precision="fp16", use_cache=False, **settings)
    assert len(found.limits) == len(settings["find"])
    # Eight round sizes among them, and the sizes up to the first that is not even tight.
    assert found.traces <= 40 * len(found.limits)
    for limit in found.limits:
        for probe, fits in ((limit.best, True), (limit.above, False)):
            plan = replace(found.plan, batch=probe.batch, seq=probe.seq)
            with Client() as client:
                answer, trace = client.trace(plan)
            device = device_of(gpus.find("t4"), settings["memory"], plan)
            assert on_device(answer, trace, device).fit == probe.fit, plan
            assert probe.fit.fits is fits, plan


def test_a_saved_answer_is_shown_in_full_in_markdown(found, cli, tmp_path):
    answer = found["gpt2"]
    (tmp_path / "fit.json").write_text(saved.as_json(answer))
    done = cli("show", "fit.json", "-f", "markdown")
    assert done.returncode == 0, done.stderr
    assert done.stdout == markdown(fitted.blocks(answer, verbose=True))
    assert len(done.stdout) > len(cli("show", "fit.json").stdout)
