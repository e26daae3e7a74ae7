"""``memcalc fit`` on real models: full estimates at the answer and one above agree with it."""

import json
import pathlib

import pytest
from msgspec.structs import replace

import memcalc
from memcalc.advice.fit.devices import _try_layouts
from memcalc.advice.fit.fit import answer, probe_all
from memcalc.advice.fit.limits import multiple, with_advice
from memcalc.advice.fit.records import Limit, Probe
from memcalc.catalog import models
from memcalc.catalog.gpus import architectures
from memcalc.catalog.plan import make
from memcalc.errors import UsageError
from memcalc.estimation import estimate as api
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
from memcalc.files import artifact
from memcalc.records.plan import Plan
from memcalc.records.prediction import Fit, FitVerdict
from memcalc.report import fitted, saved
from memcalc.report.blocks import markdown


@pytest.fixture
def cli(request):
    # The name of this fixture is that of the package, which is imported above.
    return request.getfixturevalue("memcalc")


PLANS = {
    "distilbert-base-cased": {"gpu": "t4", "seq": 128, "find": ("batch", "seq", "grid")},
    "gpt2": {"gpu": "t4", "precision": "amp-fp16", "find": ("batch",)},
}
SMALL = {
    "distilbert-base-cased": {"n_layers": 2, "max_position_embeddings": 24},
    "gpt2": {"n_layer": 2},
}
LESS = {"distilbert-base-cased": {"seq": 24}, "gpt2": {"seq": 64}}
"""On a card of 4 GB: the largest batch is small, and found soon."""


@pytest.fixture(scope="module", params=["small", pytest.param("whole", marks=pytest.mark.nightly)])
def found(request, shared, once):
    """An answer for each model, by its bundled name."""
    answers = {}
    with once("fit"):
        for name, settings in PLANS.items():
            model, own = name, settings
            if request.param == "small":
                model = str(shared / f"small {name}.json")
                config = {**models.find(name).config, **SMALL[name]}
                # Whole at any time: each worker writes it, and others read it meanwhile.
                artifact.put(pathlib.Path(model), json.dumps(config).encode())
                own = {**settings, **LESS[name], "gpu": "GTX 1650"}
            answers[name] = memcalc.fit(model, **own)
    return answers


def points(found):
    for one in found.values():
        for limit in one.limits:
            for probe in (limit.best, limit.above):
                if probe is not None:
                    yield (
                        replace(one.plan, batch=probe.batch, seq=probe.seq),
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
    assert asked[2][1].seq == models.find(asked[2][0].model).config["max_position_embeddings"]


def test_the_grid_agrees_with_the_limit(found):
    answer = found["distilbert-base-cased"]
    limit = answer.limits[0].best.batch
    row = answer.grid.cells[answer.grid.seqs.index(answer.plan.seq)]
    assert [cell.fit.fits for cell in row] == [batch <= limit for batch in answer.grid.batches]


def test_what_is_larger_than_one_that_does_not_fit_is_not_run(small_model):
    plan = make({"model": small_model, "gpu": "t4"})
    answers = Answers(workers=2, figures=True, memory=700 << 20)
    plans = [replace(plan, batch=b, seq=s) for s in (64, 128) for b in (1, 8, 64, 512)]
    found = probe_all(plans, answers)
    assert [found[0].fit.fits, found[-1].fit.fits] == [True, False]
    assert answers.runs < len(plans)
    assert found[-1].fit.metric == "allocated"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "--gpu"),
        ({"gpu": "t4", "target": "cpu"}, "target cpu"),
        ({"gpu": "t4", "inputs": ("x=float32[2]",)}, "--input"),
        ({"gpu": "t4", "find": ("speed",)}, "speed"),
        ({"gpu": "nope"}, "nope"),
        ({"find": ("devices",)}, "How many of which GPU"),
    ],
)
def test_what_cannot_be_asked_is_said_in_one_sentence(settings, said):
    with pytest.raises(UsageError, match=said):
        memcalc.fit("gpt2", **settings)


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
            assert engine.predict(plan, memory=settings["memory"]).fit == probe.fit, plan
            assert probe.fit.fits is fits, plan


def test_a_saved_answer_is_shown_in_full_in_markdown(found, cli, tmp_path):
    answer = found["gpt2"]
    (tmp_path / "fit.json").write_text(saved.as_json(answer))
    done = cli("show", "fit.json", "-f", "markdown")
    assert done.returncode == 0, done.stderr
    assert done.stdout == markdown(fitted.blocks(answer, verbose=True))
    assert len(done.stdout) > len(cli("show", "fit.json").stdout)


@pytest.mark.nightly
def test_a_model_too_large_for_one_gpu_is_spread_over_the_fewest_that_hold_it():
    plan = Plan(model="meta-llama/Llama-3.2-1B", gpu="t4", batch=1, seq=256)
    found = answer(plan, ("devices",)).devices
    assert [row.devices for row in found][:5] == [1, 2, 2, 2, 2]
    assert found[0].fit.verdict is FitVerdict.DOES_NOT_FIT
    assert [row.parallel for row in found if row.reason] == ["ddp"]
    last = [row for row in found if row.devices == found[-1].devices]
    fitting = [row.fit.verdict is FitVerdict.FITS for row in last]
    assert fitting == sorted(fitting, reverse=True)
    assert any(fitting)
    # What fits is sorted by what it sends.
    sizes = [row.sent for row in last if row.fit.verdict is FitVerdict.FITS]
    assert sizes == sorted(sizes)
    assert all(row.messages for row in last)
    fewer = [row for row in found[: -len(last)] if row.fit is not None]
    assert not any(row.fit.verdict is FitVerdict.FITS for row in fewer)


@pytest.mark.nightly
def test_layouts_that_keep_a_model_whole_are_not_traced_where_it_alone_is_too_large():
    plan = Plan(model="Qwen/Qwen2.5-7B", gpu="t4", batch=1, seq=64, precision="bf16")
    found = answer(plan, ("devices",)).devices
    whole = [row for row in found if row.parallel in ("ddp", "zero1")]
    assert all("optimizer state alone are" in row.reason for row in whole)
    assert found[-1].devices > 2


def test_a_layout_that_is_refused_says_why_and_products_that_cannot_be_divided_are_left_out():
    plan = Plan(model="gpt2", gpu="t4", batch=64, seq=1024, optim="adam8bit")
    answers = Answers(use_cache=False, workers=None)

    class Full:
        def excess(self, plan):
            return 1 << 40 if plan.parallel in ("ddp", "zero1") else None

    rows = {row.parallel: row for row in _try_layouts(plan, 2, answers, Full())}
    assert rows.keys() == {"ddp", "zero1", "fsdp2"}
    assert "take no DTensors" in rows["fsdp2"].reason


def limit(batch=None, seq=None, axis="batch"):
    fit = Fit(gpu="x", capacity=1, needed=1, metric="process_used", verdict=FitVerdict.FITS)
    best = Probe(batch=batch or 1, seq=seq, fit=fit)
    return Limit(axis=axis, step=1, best=best, above=None, perhaps=None)


@pytest.mark.parametrize(
    ("precision", "capability", "wanted"),
    [
        ("amp-fp16", (7, 5), 8),
        ("bf16", (8, 0), 64),
        ("tf32", (8, 0), 32),
        ("tf32", (7, 5), 1),
        ("fp32", (9, 0), 1),
        ("fp16", (6, 0), 1),
    ],
)
def test_tiles_are_16_bytes_wide_and_128_from_the_a100_on(precision, capability, wanted):
    assert multiple(precision, architectures()[capability]) == wanted


@pytest.mark.parametrize(
    ("batch", "seq", "wanted"), [(15, 500, 14), (15, 512, 15), (15, 1, 8), (7, 1, 7), (13, None, 8)]
)
def test_tokens_of_the_suggested_batch_are_a_multiple_where_that_is_possible(batch, seq, wanted):
    plan = make({"model": "gpt2", "precision": "amp-fp16"})
    found = with_advice(limit(batch=batch, seq=seq), plan, seq, architectures()[7, 5])
    assert found.suggested == wanted
    assert "multiples of 8" in found.advice


def test_a_sequence_is_suggested_in_whole_tiles():
    plan = make({"model": "gpt2", "precision": "bf16"})
    assert (
        with_advice(limit(seq=1000, axis="seq"), plan, 512, architectures()[8, 0]).suggested == 960
    )


@pytest.mark.nightly
def test_batches_of_stages_are_found_in_few_runs_whose_micro_batches_grow(tmp_path):
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 1000}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"model_type": "llama", **sizes, **heads}))
    plan = {"batch": 4, "seq": 128, "parallel": "pp=2", "task": "causal-lm"}
    found = memcalc.fit(str(path), find=["batch"], gpu="t4", **plan)
    (limit,) = found.limits
    assert limit.best.batch % 4 == 0
    assert found.traces < 16
    assert "every batch is divided into 4 micro-batches (n_microbatches)" in found.assumptions


def test_several_gpus_that_are_named_are_rows_in_place_of_those_of_clouds(memcalc):
    done = memcalc("fit", "gpt2", "--batch", "1", "--seq", "8", "--gpu", "t4,rtx 4090")
    assert done.returncode == 0
    assert "T4, the cheapest of the 2 GPUs that fit" in done.stdout
    assert "RTX 4090" in done.stdout
    assert "clouds rent" not in done.stdout
