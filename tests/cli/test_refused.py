"""What cannot be answered is refused in one sentence before anything is traced."""

import json
import os
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

from memcalc.__main__ import run
from memcalc.children.client import ForkServer
from memcalc.estimation.question import find_user_code
from memcalc.files import artifact
from memcalc.files.results import Run, save
from memcalc.records.measurement import Measurement
from memcalc.records.plan import Plan

LORA = "r=16,target=all-linear"
FLASH = "--attention flash_attention_2"
FLOAT8 = "--float8 tensorwise"
X = "--input x=float32[2,3,8,8]"


@pytest.fixture(autouse=True)
def _nothing_is_traced(monkeypatch, tmp_path):
    def started(*_: object, **__: object) -> None:
        raise AssertionError("a child was started")

    monkeypatch.setattr(ForkServer, "ask", started)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("estimate", "Which model"),
        ("estimate no-such-model", "memcalc list models"),
        ("estimate distilbert-base-case", "did you mean distilbert-base-cased"),
        ("estimate ./missing/config.json", "Cannot read"),
        ("estimate gpt2 --precision fp12", "Choose one of"),
        ("estimate gpt2 --task ctc", "has no head for ctc"),
        ("estimate gpt2 --format yaml", "choose table"),
        ("estimate gpt2 --lora r=4,alpha=x", LORA),
        ("estimate gpt2 --lora r=0", LORA),
        ("estimate gpt2 --lora r=10^9", LORA),
        ("estimate gpt2 --lora r=1000000000", LORA),
        ("estimate gpt2 --lora r=4,rank=4", LORA),
        ("estimate gpt2 --lora r=4,r=8", LORA),
        ("explain gpt2 --lora dropout=1", LORA),
        ("fit gpt2 --gpu t4 --lora target=", LORA),
        ("estimate gpt2 --batch \u0663", "whole number from 1 to 1,048,576"),
        ("estimate gpt2 --seq 8k", "to 16,777,216: type 8192."),
        ("estimate gpt2 --batch 1.5", "whole number from 1 to 1,048,576"),
        ("estimate gpt2 --batch -3", "whole number from 1 to 1,048,576"),
        ("estimate gpt2 --batch 0", "whole number from 1 to 1,048,576"),
        ("estimate gpt2 --grad-accum 0", "whole number from 1 to 65,536"),
        ("estimate gpt2 --devices 0", "whole number from 1 to 65,536"),
        ("estimate gpt2 --eval -1", "whole number from 1 to 65,536"),
        ("estimate gpt2 --loop keras", "choose one of plain, accelerate, trainer"),
        ("estimate gpt2 --target tpu", "Choose one of cuda, cpu"),
        ("estimate gpt2 --parallel zero9:2", "did you mean zero2"),
        ("estimate gpt2 --preset huge", "choose one of full, lora, qlora"),
        ("estimate gpt2 --optim adam8bit --optim-arg optim_bits=7", "is 8 or 32, not 7"),
        ("estimate gpt2 --alloc-conf max_split_size_mb:x", "takes a whole number of MiB"),
        ("estimate gpt2 --optim=", "not empty"),
        ("estimate gpt2 --optim adamw,", "not empty"),
        ("estimate gpt2 --gpu=", "not empty"),
        ("estimate gpt2 --max-grad-norm nan", "a number above 0"),
        ("estimate gpt2 --max-grad-norm -1", "a number above 0"),
        ("suggest gpt2 --load_in_4bit", "type --quant nf4."),
        ("estimate gpt2 --lr 1e-4 --epochs 3", "--lr: it changes no memory, so leave it out."),
        ("explain --top 3 -- python train.py", "Scripts are run by simulate"),
        ("measure train.py", "type memcalc run -- python train.py."),
        ("diff gpt2", "Type: memcalc diff [OPTIONS] BEFORE NOW"),
        ("estimate gpt2 --lora --gpu 3090", "--lora needs a value: type --lora r=16."),
        ("fit gpt2 --max-batch", "type --find batch."),
        ("estimate gpt2 --gpu 24gb", "is a size, not a GPU: name one of L4, A10G, RTX 4090"),
        ("estimate gpt2 --gpu 0", "name its kind, such as t4 or 4090"),
        ("estimate --model gpt2", "type MODEL without an option"),
        ("list gpus --batch-size 3", "No such option: --batch-size."),
        ("estimate gpt2 --torch 2", "such as 2.13"),
        ("estimate gpt2 --torch 1.13", "before 2.0"),
        (f"measure --device cpu --suite {'n' * 300}.toml", "File name too long"),
        ("estimate gpt2 --torch \u0662.\u0661", "2.13"),
        ("estimate gpt2 --seq 2048", "at most 1024 tokens"),
        ("estimate roberta-base --seq 513", "at most 512 tokens"),
        ("estimate google/vit-base-patch16-224 --task poetry", "choose one of"),
        ("estimate gpt2 --alloc-conf max_split:3", "max_split"),
        ("estimate gpt2 --freeze nothing*", "matches no parameter"),
        ("estimate gpt2 --freeze *", "Nothing is left to train"),
        ("estimate gpt2 --lora target=q_proj", "no module called q_proj"),
        ("estimate gpt2 --gpu t44", "memcalc list gpus"),
        ("estimate gpt2 --gpu 4009", "did you mean RTX 4090"),
        ("estimate gpt2 --gpu t5", "did you mean T4"),
        ("init -- python nothing.py", "error: There is no script nothing.py.\n"),
        ("run --interval 0 -- true", "has no such option; the program stands first"),
        ("estimate gpt2 --optim adamm", "did you mean adam"),
        ("estimate gpt2 --optim adam8", "did you mean adam8bit"),
        ("estimate gpt2 --optim-arg lr=fast", "positive number"),
        ("estimate gpt2 --optim-arg lr=-1", "positive number"),
        ("estimate gpt2 --optim-arg betas=0.9", "two numbers below 1"),
        ("estimate gpt2 --optim-arg fused=yes", "true or false"),
        ("estimate gpt2 --optim-arg momentum=0.9", "adamw takes"),
        ("estimate gpt2 --optim sgd --optim-arg momentum=x", "not a number"),
        ("estimate gpt2 --method guess", "choose one of trace, analytic"),
        ("explain gpt2 --top -5", "whole number from 1"),
        ("explain gpt2 --top \u0665", "whole number from 1"),
        ("explain gpt2 --depth 0", "whole number from 1"),
        ("explain gpt2 --under 4", "write a number and a unit"),
        ("explain gpt2 --under \u0664GiB", "write a number and a unit"),
        ("fit gpt2 --memory 0GiB", "must be more than 0 bytes"),
        ("fit gpt2 --memory -1GiB", "write a number and a unit"),
        ("fit gpt2 --gpu t4 --find depth", "write batch, seq or batch,seq"),
        ("measure gpt2 --steps 1", "whole number from 2"),
        ("measure gpt2 --timeout inf", "a number above 0"),
        ("measure gpt2 --device tpu", "one of cuda, cpu"),
        ("check --timeout nan", "a number above 0"),
        ("check --jobs 0", "whole number from 1"),
        ("check --device tpu", "one of cuda, cpu"),
        ("report gpt2 -o gpt2.doc", "No format belongs"),
        ("show gpt2.json --top 0", "whole number from 1"),
        ("init gpt2 --margin 1GiB", "write one, as 5%"),
        ("simulate --steps -1 -- python train.py", "whole number from 0"),
        ("estimate gpt2 --attention flash_attention_3", "type --attention flash_attention_2"),
        (f"estimate gpt2 {FLASH}", "add --precision amp-bf16"),
        (f"estimate gpt2 {FLASH} --precision bf16 --gpu t4", "T4 is older"),
        (f"estimate gpt2 {FLASH} --precision bf16 --target cpu", "leave out attention, or target"),
        ("estimate gpt2 --quant gptq", "type --quant nf4 for 4 bit"),
        ("estimate gpt2 --quant fp8", "such as DeepSeek-V3: name such a model"),
        ("estimate gpt2 --precision fp8", "type --precision amp-bf16 --float8"),
        (f"estimate gpt2 {FLOAT8} --target cpu", "leave out float8"),
        (f"estimate gpt2 {FLOAT8} --precision fp16", "leave it out, or precision"),
        (f"estimate gpt2 {FLOAT8} --quant nf4 --precision bf16", "leave out float8, or quant"),
        (f"estimate gpt2 {FLOAT8} --generate 8", "leave out float8"),
        (
            "estimate gpt2 --devices 2 --parallel fsdp1 --quant nf4 --precision bf16",
            "no-kbit-prepare",
        ),
        ("estimate gpt2 --devices 2 --parallel fsdp2 --quant int8", "type --quant nf4-dq"),
        ("estimate gpt2 --quant nf4 --lora none", "leave out lora none"),
        ("estimate gpt2 --preset qlora --lora none", "leave out lora none"),
        (f"estimate own:net {X} --input x=float32[1]", "describes x twice"),
        ("estimate own:net --input x=float32[99999999999,3]", "first size of an input"),
        (f"estimate own:net {X} --batch 3", "describe 2 samples"),
        (f"estimate own:net {X} --seq 4", "leave one out"),
        (f"fit own:net {X} --gpu t4", "makes the batches itself"),
        (f"explain own:net {X} --padding", "leave one out"),
        (f"explain own:net {X} --seq 4", "leave one out"),
        (f"estimate own:net {X} --task causal-lm", "leave out --task"),
        (f"estimate own:net {X} --attention eager", "leave --attention out"),
        (f"measure own:net {X} --device cpu --seq 4", "leave one out"),
        ("estimate gpt2 --lengths uniform:1,4 --method analytic", "leave out --method analytic"),
        ("suggest gpt2 --target cpu", "leave --target cpu out"),
        ("diff gpt2 gpt2.toml", "Cannot read gpt2.toml"),
        ("suggest gpt2 --gpu t4 --tokens nan", "a number above 0"),
        ("suggest gpt2 --gpu t4 --tokens inf", "a number above 0"),
        ("suggest gpt2 --gpu t4 --tokens 0", "a number above 0"),
        ("suggest gpt2 --gpu t4 --tokens 1e9 --price nan", "a number from 0 to"),
        ("suggest gpt2 --gpu t4 --inference", "leave out inference"),
        ("suggest gpt2 --gpu t4 --generate 4", "leave out generate"),
        ("suggest gpt2 --inference", "leave out inference"),
        *(
            (f"estimate gpt2 --devices 2 --parallel {layout} --parallel-arg {given}", wanted)
            for layout, given, wanted in (
                ("ddp", "bucket_cap_mb=x", "a number above 0"),
                ("ddp", "bucket_cap_mb=0", "a number above 0"),
                ("ddp", "static_graph=no", "true or false"),
                ("zero1", "gradient_as_bucket_view=1", "true or false"),
                ("fsdp1", "sharding_strategy=HYBRID_SHARD", "device_mesh=2x8"),
                ("fsdp1", "sharding_strategy=HALF", "is not one of FULL_SHARD"),
                ("fsdp1", "device_mesh=2x1", "leave it out"),
                ("fsdp1", "device_mesh=2x8", "makes 16 devices"),
                ("fsdp1", "device_mesh=two", "such as 2x8"),
                ("fsdp1", "use_orig_params=never", "true or false"),
                ("fsdp1", "offload=gpu", "is not cpu"),
                ("fsdp2", "offload=true", "is not cpu"),
                ("fsdp2", "reshard_after_forward=no", "true, false or"),
                ("tp=2", "sequence_parallel=off", "true or false"),
            )
        ),
        (f"simulate -- python {'n' * 300}.py", "There is no script"),
        ("simulate --timeout 3 -- python a.py", "--timeout is no option of memcalc simulate"),
    ],
)
def test_nonsense_is_refused_at_once(capsys, words, said):
    refused(capsys, words.split(), said)


@pytest.mark.parametrize("verb", ["explain", "report -o page.html"])
def test_nothing_is_set_beside_a_saved_answer(capsys, tmp_path, verb):
    (tmp_path / "answer.json").write_text('{"schema": 1, "kind": "prediction", "record": {}}')
    refused(capsys, [*verb.split(), "answer.json", "--batch", "2"], "leave batch out")


def test_a_missing_package_is_named_before_the_work(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "hqq", None)
    refused(capsys, "estimate gpt2 --generate 8 --cache quantized-hqq".split(), "hqq")


def refused(capsys, words: list[str], said: str) -> None:
    assert run(words) == 2
    found = capsys.readouterr()
    assert found.out == ""
    assert said in found.err
    assert found.err.startswith("error: ")
    assert len(found.err.strip().splitlines()) == 1


EVIL = "import pathlib; pathlib.Path({!r}).touch()\ndef build(): raise SystemExit(0)\n"


@pytest.fixture
def evil(tmp_path, monkeypatch):
    """A module that leaves a mark when it is imported, by whichever process."""
    mark = tmp_path / "imported"
    (tmp_path / "evil_module.py").write_text(EVIL.format(str(mark)))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return mark


def _files(prediction):
    """A result of each kind whose plan names code."""
    plan = replace(prediction.plan, model="evil_module:build")
    named = replace(prediction, plan=plan)
    body = {"schema": 1, "kind": "prediction", "record": artifact.encode(named)}
    with open("named.json", "w") as file:
        json.dump(body, file)
    measured = Measurement(
        plan=plan, device="T4", head="", seq=None, parameters=1, weights=1, gradients=1,
        state=None, phases=(), seconds_per_step=None, samples_per_second=None,
    )  # fmt: skip
    optim = replace(plan, model="gpt2", optim="evil_module.build")
    runs = [Run(plan=p, measurement=replace(measured, plan=p)) for p in (plan, optim)]
    save(Path("measured.json"), runs)


def test_no_verb_runs_the_code_that_a_result_names(memcalc, evil, traced):
    _files(traced.prediction)
    compared = memcalc("compare", "measured.json")
    assert compared.returncode == 0, compared.stderr
    assert "no estimate of evil_module:build" in compared.stderr
    assert "no estimate of evil_module.build" in compared.stderr
    page = memcalc("report", "named.json", "-o", "page.html")
    assert page.returncode == 0, page.stderr
    with open("page.html") as file:
        assert "evil_module:build is Python code, and a file does not run code" in file.read()
    drawn = memcalc("report", "named.json", "-o", "x.svg")
    assert (drawn.returncode, "There is no timeline" in drawn.stderr) == (2, True)
    snapshot = memcalc("report", "named.json", "-o", "x.pickle")
    assert (snapshot.returncode, "which is code" in snapshot.stderr) == (2, True)
    assert memcalc("show", "named.json").returncode == 0
    assert not evil.exists()
    assert not os.path.exists("x.svg")


def test_a_training_configuration_cannot_name_code_either(memcalc, evil):
    with open("train.yaml", "w") as file:
        file.write("base_model: evil_module:build\nmicro_batch_size: 1\noptimizer: 'os:system'\n")
    done = memcalc("init", "--from", "train.yaml")
    assert (done.returncode, "is no model of the hub" in done.stderr) == (2, True)
    assert not evil.exists()


@pytest.mark.parametrize(
    ("model", "optim", "code"),
    [
        ("gpt2", "adamw", None),
        ("gpt2", "memcalc.adamw8bit", None),
        ("gpt2", "no-such-optimizer", None),
        ("gpt2", "mine.MyOptimizer", "mine.MyOptimizer"),
        ("gpt2", "mine:MyOptimizer", "mine:MyOptimizer"),
        ("mine:build", "adamw", "mine:build"),
        ("./mine.py:build", "adamw", "./mine.py:build"),
    ],
)
def test_code_is_told_from_names_that_memcalc_knows(model, optim, code):
    assert find_user_code(Plan(model=model, optim=optim)) == code


@pytest.mark.parametrize("verb", ["run", "watch"])
def test_a_script_that_is_not_executable_is_started_by_python(verb, capsys):
    Path("train.py").write_text("import torch")
    assert run([verb, "--", "train.py"]) == 2
    assert "type python train.py" in capsys.readouterr().err
