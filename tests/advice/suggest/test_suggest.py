"""Ways to train that fit a GPU: every one is an estimate that anybody can ask for."""

import contextlib
import io
import json

import pytest
import yaml
from msgspec.structs import replace

import memcalc
from memcalc.advice.remedies.trials import apply
from memcalc.advice.suggest import speed_and_price
from memcalc.advice.suggest.records import Speed
from memcalc.advice.suggest.snippets import PROGRAMS, is_written_for, snippet
from memcalc.advice.suggest.strategies import ways
from memcalc.advice.suggest.suggest import suggest_plan
from memcalc.catalog import models
from memcalc.catalog.plan import make
from memcalc.cli.suggest import write_scripts
from memcalc.errors import UsageError
from memcalc.records.prediction import FitVerdict
from memcalc.report import suggested
from memcalc.report.blocks import terminal
from memcalc.report.suggested import Work

WIDE = {"batch": 48, "seq": 512}
"""Logits of this batch alone are more than a small card has."""


@pytest.fixture(scope="module")
def found(small_model, once):
    with once("suggested"):
        return memcalc.suggest(small_model, gpu="GTX 1650", **WIDE)


def test_what_is_suggested_fits_and_keeps_the_samples_of_a_step(found):
    assert found.fitting
    for one in found.fitting:
        plan = one.figures.plan
        assert one.figures.fit.verdict is FitVerdict.FITS
        assert plan.batch * plan.grad_accum == WIDE["batch"]


def test_the_figures_are_those_of_an_estimate_of_the_same_plan(found):
    one = found.fitting[0]
    settings = {
        name: getattr(one.figures.plan, name)
        for name in one.figures.plan.__struct_fields__
        if name not in ("model", "command")
    }
    assert memcalc.estimate(one.figures.plan.model, **settings).peak == one.figures.peak


def test_what_fits_comes_first_and_what_gives_up_least_before_it(found):
    fits = [one.figures is not None for one in found.found]
    assert fits == sorted(fits, reverse=True)
    assert [one.way.key for one in found.fitting] == [
        key
        for key in ("full", "full-8bit", "full-bf16", "lora", "qlora")
        if key in {one.way.key for one in found.fitting}
    ]


@pytest.mark.parametrize(
    ("settings", "way"),
    [({}, "full"), ({"lora": "r=8"}, "lora"), ({"lora": "r=8", "quant": "nf4"}, "qlora")],
)
def test_a_recipe_goes_on_training_what_it_trains(found, settings, way):
    asked = replace(found, plan=make({"model": found.plan.model, **settings}))
    assert asked.nearest.way.key == way


def test_a_way_that_needs_a_search_has_a_row_as_soon_as_its_first_plan_is_known(small_model):
    seen = []
    plan = make({"model": small_model, "gpu": "GTX 1650", "batch": 128, "seq": 512})
    found = suggest_plan(plan, seen=seen.append)
    searched = next(one for one in found.fitting if one.remedies)
    first = next(one for some in seen for one in some.found if one.way.key == searched.way.key)
    assert first.figures is None
    assert first.closest.plan.batch == plan.batch
    assert next(suggested.row_words(seen[0])).endswith("more")


def test_a_script_is_written_for_each_way_that_fits_or_it_is_said_why_not(found, tmp_path, capsys):
    write_scripts(found, tmp_path / "train.py")
    said = capsys.readouterr().err
    for one in found.fitting:
        path = tmp_path / f"train-{one.way.key}.py"
        assert path.exists() != (f"no script for {one.way.title}: " in said), said
        if path.exists():
            compile(path.read_text(), path.name, "exec")
            assert f"{one.figures.plan.batch}, 512" in path.read_text()
    assert (tmp_path / "train-lora.py").exists()


def test_a_speed_that_nobody_published_is_not_made_up(found):
    for one in found.fitting:
        assert (one.speed is None) == bool(one.no_speed)


def test_without_a_gpu_the_question_is_refused(small_model):
    with pytest.raises(UsageError, match="Name one with --gpu"):
        memcalc.suggest(small_model, gpu=None)


def test_a_recipe_is_told_by_its_keys_from_those_of_other_programs(tmp_path):
    file = tmp_path / "ax.yaml"
    file.write_text("base_model: gpt2\nmicro_batch_size: 2\ndatasets: []\n")
    assert [one for one in PROGRAMS if is_written_for(one, str(file))] == ["axolotl"]
    assert not is_written_for("axolotl", "gpt2")


@pytest.mark.parametrize("program", PROGRAMS)
def test_a_snippet_says_batch_and_accumulation_in_the_words_of_its_program(found, program):
    plan = found.fitting[0].figures.plan
    text = snippet(plan, program)
    if program == "trainer":
        names = {}
        with contextlib.redirect_stderr(io.StringIO()):
            exec(text, names)
        args = names["args"]
        assert args.per_device_train_batch_size == plan.batch
        assert args.gradient_accumulation_steps == plan.grad_accum
        return
    known = yaml.safe_load(text)
    if program == "axolotl":
        assert known["micro_batch_size"] == plan.batch
    elif program == "torchtune":
        assert known["batch_size"] == plan.batch
        assert f"# precision: {plan.precision}" in text
    elif program != "accelerate":
        assert known["per_device_train_batch_size"] == plan.batch
        assert known["gradient_accumulation_steps"] == plan.grad_accum
    else:
        assert known["mixed_precision"] in ("fp16", "bf16", "no")
        assert f"gradient_accumulation_steps={plan.grad_accum}" in text


def test_adapters_are_made_with_their_dropout(small_model):
    text = snippet(make({"model": small_model, "lora": "r=8,dropout=0.1"}), "trainer")
    assert "LoraConfig(r=8, lora_alpha=16, lora_dropout=0.1, " in text


@pytest.mark.parametrize(
    ("optim", "named"),
    [
        ("paged_adamw8bit", "paged_adamw_8bit"),
        ("pagedadamw8bit", "paged_adamw_8bit"),
        ("transformers.adafactor", "adafactor"),
        ("adafactor", None),
    ],
)
def test_an_optimizer_is_named_as_the_trainer_names_that_very_one(small_model, optim, named):
    text = snippet(make({"model": small_model, "optim": optim}), "trainer")
    assert (f'optim="{named}"' in text) if named else ("optim=" not in text)


@pytest.mark.nightly
def test_over_several_gpus_what_each_holds_is_divided_before_a_step_is_slowed():
    found = memcalc.suggest("gpt2-medium", gpu="4xgtx-1660", batch=1, seq=128)
    full = next(one for one in found.found if one.way.key == "full")
    assert full.figures is not None
    assert full.figures.plan.devices == 4
    assert [one.key for one in full.remedies] in (["zero1"], ["fsdp2"])
    text = terminal(list(suggested.blocks(found, suggested.Work())), width=80)
    assert text.startswith("✓ fits on 4 x GTX 1660")


@pytest.mark.nightly
def test_where_one_gpu_is_too_small_for_all_weights_several_are_tried():
    found = memcalc.suggest("gpt2-medium", gpu="gtx-1650", batch=8, seq=128)
    assert "full" not in [one.way.key for one in found.fitting]
    over = next(one for one in found.fitting if one.way.key.startswith("full x"))
    plan = over.figures.plan
    assert plan.devices * plan.batch * plan.grad_accum == 8
    assert over.figures.fit.verdict is FitVerdict.FITS


@pytest.mark.parametrize("preset", ["full", "lora", "qlora"])
def test_a_way_that_trains_the_whole_model_has_neither_adapters_nor_few_bits(preset):
    plan = make({"model": "gpt2", "preset": preset, "gpu": "RTX 4090"})
    found = {way.key: apply(plan, way) for way in ways(plan)}
    assert list(found) == ["full", "full-8bit", "full-bf16", "lora", "qlora"]
    for key in ("full", "full-8bit", "full-bf16"):
        assert (found[key].adapters, found[key].quant) == (None, None)
    assert found["lora"].lora
    assert found["lora"].quant is None
    assert found["qlora"].quant == "nf4-dq"


def test_of_a_base_that_is_not_prepared_the_other_ways_are_still_offered():
    plan = make({"model": "gpt2", "quant": "int8", "kbit_prepare": False})
    *others, last = ways(plan)
    assert all(apply(plan, way).kbit_prepare for way in others)
    assert apply(plan, last).kbit_prepare is False
    assert last.title.startswith("QLoRA r=16, 8 bit")


@pytest.fixture
def in_4_bit(tmp_path):
    told = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**models.find("gpt2").config, "quantization_config": told}))
    return str(path)


def test_a_checkpoint_that_is_quantized_takes_adapters_alone(in_4_bit):
    plan = make({"model": in_4_bit})
    (way,) = ways(plan)
    assert (way.key, apply(plan, way).quant) == ("qlora", "nf4")


@pytest.mark.parametrize("program", ["trainer", "accelerate"])
def test_such_a_checkpoint_says_itself_how_it_is_loaded(in_4_bit, program):
    said = snippet(make({"model": in_4_bit}), program)
    assert "BitsAndBytesConfig" not in said
    assert 'device_map={"": 0}' in said
    assert "BitsAndBytesConfig" in snippet(make({"model": "gpt2", "quant": "nf4"}), program)


FAST = Speed(low=1000, high=2000, tokens=1)


def cells(work, devices):
    return list(work.cells(FAST, "T4", devices))


def test_the_cost_is_that_of_all_gpus_for_the_hours():
    work = Work(tokens=3.6e6, prices=speed_and_price.read("2"))
    assert work.head([FAST]) == ("hours", "cost")
    assert cells(work, 1) == ["0.5 to 1", "1 to 2"]
    assert cells(work, 2) == ["0.5 to 1", "2 to 4"]


def test_a_file_gives_each_gpu_its_price_and_a_machine_that_of_each_of_its_gpus(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text('T4 = 0.5\n"p5.48xlarge" = 80\n')
    known = speed_and_price.read(str(path))
    assert known.price("T4") == 0.5
    assert known.price("H100 SXM") == 10
    with pytest.raises(UsageError, match="no price for L4, only for T4, H100 SXM"):
        known.price("L4")


@pytest.mark.parametrize("text", ["-1", "nan", "no/such/file"])
def test_what_is_no_price_is_refused_in_a_sentence(text):
    with pytest.raises(UsageError, match=r"no price|no such file"):
        speed_and_price.read(text)


@pytest.mark.parametrize("body", ["", "T4 = true", "T4 = -2", "'no card' = 1"])
def test_a_file_of_no_prices_is_refused_in_a_sentence(tmp_path, body):
    path = tmp_path / "prices.toml"
    path.write_text(body)
    with pytest.raises(UsageError, match=r"price|Unknown GPU"):
        speed_and_price.read(str(path))


MODEL = "gpt2"


def read_again(text, folder, **beside):
    path = folder / "config.yaml"
    path.write_text(text)
    return make({"model": MODEL, "accelerate_config": str(path), **beside})


@pytest.mark.parametrize(
    "asked",
    [
        {"devices": 4, "precision": "amp-bf16"},
        {"devices": 8, "parallel": "fsdp2", "precision": "amp-bf16"},
        {
            "devices": 8,
            "parallel": "fsdp2",
            "parallel_args": {"reshard_after_forward": False},
            "precision": "amp-bf16",
        },
        {"devices": 2, "parallel": "zero2", "precision": "amp-bf16"},
        {"devices": 2, "parallel": "zero3", "precision": "amp-bf16", "grad_accum": 4},
    ],
)
def test_accelerates_file_is_read_as_the_same_layout(tmp_path, asked):
    plan = make({"model": MODEL, **asked})
    again = read_again(snippet(plan, "accelerate"), tmp_path, grad_accum=plan.grad_accum)
    assert (again.devices, again.precision) == (plan.devices, plan.precision)
    assert (again.parallel or "ddp") == (plan.parallel or "ddp")
    assert dict(plan.parallel_args).items() <= dict(again.parallel_args).items()


@pytest.mark.parametrize("scheme", ["nf4", "nf4-dq", "fp4", "int8"])
def test_a_quantized_base_is_loaded_as_the_estimate_loads_it(forked, scheme):
    told, estimated = forked(settings_told_and_estimated, scheme)
    assert told == estimated


def settings_told_and_estimated(scheme):
    """transformers' settings by the snippet and by what is traced."""
    from memcalc.workload.quantized import make_config

    plan = make({"model": MODEL, "quant": scheme, "precision": "bf16"})
    names = {}
    exec(snippet(plan, "trainer"), names)
    return names["quantization_config"].to_dict(), make_config(plan).to_dict()


def test_the_trainer_is_told_to_shard(forked):
    assert forked(arguments_told, {"devices": 4, "parallel": "fsdp2", "batch": 3}) == [True, 2, 3]


def arguments_told(settings):
    """What TrainingArguments make of the snippet."""
    names = {}
    exec(snippet(make({"model": MODEL, **settings}), "trainer"), names)
    args = names["args"]
    return [args.fsdp, args.fsdp_config["version"], args.per_device_train_batch_size]


@pytest.mark.parametrize("program", PROGRAMS)
def test_what_a_program_has_no_word_for_is_a_comment(program):
    plan = make(
        {
            "model": MODEL,
            "devices": 4,
            "parallel": "tp=4",
            "quant": "fp4",
            "max_grad_norm": 1.0,
            "loss_chunks": 4,
        }
    )
    text = snippet(plan, program)
    for word in ("tp=4", "fp4", "norm of 1.0", "4 pieces"):
        assert word in text


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attention", "eager"),
        ("optim_args", {"amsgrad": True}),
        ("eval", 3),
        ("resume", True),
        ("seq", 99),
        ("padding", True),
        ("compile", "default"),
        ("cudnn_benchmark", True),
        ("freeze", "*.embed_tokens.*"),
    ],
)
def test_no_setting_of_a_plan_is_dropped(program, name, value):
    plan = {"model": MODEL, "loop": "accelerate" if program == "accelerate" else "trainer"}
    assert snippet(make({**plan, name: value}), program) != snippet(make(plan), program)
