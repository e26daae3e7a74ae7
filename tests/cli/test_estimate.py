"""The real command in a process of its own."""

import json
import re

import pytest

MAIN = ("estimate", "distilbert-base-cased", "--optim", "adam8bit")


def test_the_main_job_answers_with_the_keys_that_others_rely_on(cold):
    done = cold(*MAIN, "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["schema"] == 2
    assert (answer["parameters"], answer["parameter_tensors"]) == (65783042, 104)
    assert answer["components"]["weights"] == 263132168
    assert answer["components"]["optimizer_state"] == 134004336
    assert answer["method"] == "trace"
    phases = [one["phase"] for one in answer["phases"]]
    assert phases == ["forward", "backward", "step", "zero_grad"]
    assert answer["peak"]["phase"] == "backward"
    assert answer["peak"]["process_used"] is None
    assert "process_used" in answer["unknown"]
    for key in ("plan", "rules_of_thumb", "assumptions", "uncounted", "versions"):
        assert answer[key]
    ladder = [answer["peak"][rung] for rung in ("requested", "allocated", "reserved")]
    assert ladder == sorted(ladder)
    assert sum(filter(None, answer["components"].values())) == answer["peak"]["requested"]


def test_the_context_is_a_range_with_what_it_is_known_by(memcalc):
    assert re.search(
        r"process used 1\.\d to 2\.\d GiB \(context: \d+ published readings on T4, ",
        memcalc(*MAIN, "--gpu", "t4", "--verbose").stdout,
    )
    anywhere = json.loads(memcalc(*MAIN, "--format", "json").stdout)["context"]
    named = json.loads(memcalc(*MAIN, "--gpu", "t4", "--format", "json").stdout)["context"]
    assert anywhere["likely"] is None
    assert anywhere["low"] < named["low"] < named["likely"] < named["high"] < anywhere["high"]
    assert "readings on" in anywhere["source"]


def test_a_list_is_narrowed_by_a_word(memcalc):
    _, *rows = memcalc("list", "models", "Gemma").stdout.splitlines()
    assert rows
    assert all("gemma" in row for row in rows)
    contexts = memcalc("list", "gpus", "H100", "--context", COLUMNS="200").stdout.splitlines()
    assert [row[:4].strip() for row in contexts[1:]] == ["H100", "H100", "H100", "any"]
    done = memcalc("list", "gpus", "t44")
    assert (done.returncode, done.stdout) == (2, "")
    assert "'t44'" in done.stderr


def test_the_ranges_of_all_gpus_can_be_listed(memcalc):
    from memcalc.catalog import gpus

    head, *rows = memcalc("list", "gpus", "--context", COLUMNS="200").stdout.splitlines()
    assert "bare context" in head
    names = [*(gpu.name for gpu in gpus.table()), "any"]
    assert all(row.startswith(f"{name} ") for row, name in zip(rows, names, strict=True))
    assert all(re.search(r"\d+ to +\d+ .*\d+ to +\d+ .*readings", row) for row in rows)


def test_the_first_line_is_the_verdict_and_the_last_the_next_command(memcalc):
    done = memcalc(*MAIN, "--gpu", "t4", "--batch", "4", "--seq", "64")
    first, share, second, *others, _, last = done.stdout.splitlines()
    assert re.fullmatch(r"✓ fits on T4: process used .* of 14.6 GiB, .* to spare", first)
    assert share.endswith("% of the T4")
    assert "DistilBertForSequenceClassification" in second
    assert any("2.04 B/param (rule: 2)" in line for line in others)
    assert last.split()[:3] == ["memcalc", "explain", "distilbert-base-cased"]
    assert "\x1b" not in done.stdout


def test_several_optimizers_stand_side_by_side(memcalc):
    done = memcalc("estimate", "distilbert-base-cased", "--optim", "adamw,adam8bit,sgd",
                   "--seq", "32", "--batch", "1")  # fmt: skip
    assert done.returncode == 0
    assert [line.split()[0] for line in done.stdout.splitlines()[3:6]] == [
        "sgd",
        "adam8bit",
        "adamw",
    ]


def test_a_saved_result_can_be_shown_in_any_format(memcalc, tmp_path):
    assert memcalc(*MAIN, "--output", "answer.json").returncode == 0
    shown = memcalc("show", "answer.json", "--format", "csv")
    assert shown.returncode == 0
    assert "134004336" in shown.stdout
    again = memcalc("show", "answer.json", "--format", "json")
    assert json.loads(again.stdout) == json.loads((tmp_path / "answer.json").read_text())


def test_a_plan_file_is_read_and_the_command_line_wins(memcalc, tmp_path):
    (tmp_path / "plan.toml").write_text('model = "distilbert-base-cased"\nbatch = 2\nseq = 16\n')
    done = memcalc("estimate", "--plan", "plan.toml", "--batch", "1", "--method", "analytic",
                   "--format", "json")  # fmt: skip
    plan = json.loads(done.stdout)["plan"]
    assert (plan["batch"], plan["seq"]) == (1, 16)


def test_the_same_question_is_answered_from_the_cache(memcalc, tmp_path):
    first, second = memcalc(*MAIN, "-f", "json"), memcalc(*MAIN, "-f", "json")
    assert first.stdout == second.stdout
    kept = list((tmp_path / "cache").glob("*.json"))
    assert len(kept) == 1
    kept[0].write_text("{broken")
    third = memcalc(*MAIN, "-f", "json")
    assert third.stdout == first.stdout
    assert "ignoring the cached answer" in third.stderr


def test_no_variable_of_a_shell_changes_an_answer_or_the_cache(memcalc, tmp_path):
    loop = (*MAIN, "--loop", "accelerate", "-f", "json")
    told = {
        "ACCELERATE_MIXED_PRECISION": "bf16",
        "WORLD_SIZE": "2",
        "RANK": "1",
        "CUDA_VISIBLE_DEVICES": "GPU-8932f937-d72c-4106-c12f-20bd9faed9f6",
        "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:1",
    }
    there = memcalc(*loop, **told)
    assert there.returncode == 0, there.stderr
    assert "ACCELERATE_MIXED_PRECISION, PYTORCH_CUDA_ALLOC_CONF, RANK, WORLD_SIZE" in there.stderr
    assert "--alloc-conf roundup_power2_divisions:1 is" in there.stderr
    assert len(list((tmp_path / "cache").glob("*.json"))) == 1
    here = memcalc(*loop, "--no-cache")
    assert here.stdout == there.stdout
    assert not here.stderr


SHELL = {
    **dict.fromkeys(
        ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_DEEPSPEED", "ACCELERATE_USE_CPU"), "true"
    ),
    **dict.fromkeys(
        ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE", "TORCHINDUCTOR_MAX_AUTOTUNE"), "1"
    ),
    **dict.fromkeys(("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT"), "3"),
    **dict.fromkeys(("CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "USE_HUB_KERNELS"), "1"),
    **dict.fromkeys(("PYTORCH_NO_CUDA_MEMORY_CACHING", "TORCH_BLAS_PREFER_CUBLASLT"), "1"),
    **dict.fromkeys(("FSDP_OFFLOAD_PARAMS", "FSDP_CPU_RAM_EFFICIENT_LOADING"), "true"),
    **dict.fromkeys(("USE_TF", "NCCL_P2P_DISABLE", "TRITON_INTERPRET", "PYTHONOPTIMIZE"), "1"),
    "ACCELERATE_MIXED_PRECISION": "bf16",
    "ACCELERATE_DYNAMO_BACKEND": "inductor",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "BNB_CUDA_VERSION": "118",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "CUDA_VISIBLE_DEVICES": "",
    "DEEPSPEED_ZERO_STAGE": "3",
    "MASTER_ADDR": "10.255.255.1",
    "MEMCALC_STUB_DEVICES": "0",
    "OMP_NUM_THREADS": "rubbish",
    "PYTHONWARNINGS": "error",
    "PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:1",
    "TORCH_LOGS": "bogus",
    "TRANSFORMERS_ATTN_IMPLEMENTATION": "eager",
}
"""What some shell has set; of training libraries, CUDA, Python and launchers."""


@pytest.mark.nightly
@pytest.mark.parametrize(
    "question",
    [
        (*MAIN, "--loop", "trainer"),
        ("estimate", "sized:model", "--input", "input=float32[32,8]", "--compile", "default"),
    ],
)
def test_no_variable_of_a_shell_is_heard_by_a_process_that_starts_with_it(cold, tmp_path, question):
    (tmp_path / "sized.py").write_text("import torch\nmodel = lambda: torch.nn.Linear(8, 8)\n")
    asked = (*question, "--no-cache", "-f", "json")
    here, there = (cold(*asked, **told) for told in ({}, SHELL))
    assert there.returncode == 0, there.stderr
    answers = [json.loads(one.stdout) for one in (here, there)]
    for figures in ("plan", "peak", "components", "phases"):
        assert answers[0][figures] == answers[1][figures]
    assert "ACCELERATE_MIXED_PRECISION" in there.stderr


def test_code_of_a_user_reads_its_own_variables(memcalc, tmp_path):
    (tmp_path / "sized.py").write_text(
        "import os, torch\n"
        "def model():\n"
        "    assert 'ACCELERATE_MIXED_PRECISION' not in os.environ\n"
        "    return torch.nn.Linear(8, int(os.environ['WIDTH']))\n"
    )
    told = {"WIDTH": "16", "ACCELERATE_MIXED_PRECISION": "bf16"}
    done = memcalc(
        "estimate", "sized:model", "--input", "input=float32[32,8]", "-f", "json", **told
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["parameters"] == 8 * 16 + 16


def test_an_import_that_asks_for_the_gpu_finds_that_of_the_plan(memcalc, tmp_path):
    (tmp_path / "asking.py").write_text(
        "import torch\n"
        "WIDTH = torch.cuda.get_device_properties(0).multi_processor_count\n"
        "def model():\n"
        "    return torch.nn.Linear(8, WIDTH, bias=False)\n"
    )
    for gpu, processors in (("t4", 40), ("a100", 108)):
        done = memcalc("estimate", "asking:model", "--input", "input=float32[32,8]", "--gpu", gpu,
                       "-f", "json")  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["parameters"] == 8 * processors


def test_a_cache_that_cannot_be_written_is_a_warning(memcalc, tmp_path):
    (tmp_path / "file").write_text("")
    done = memcalc(*MAIN, "-f", "json", MEMCALC_CACHE=str(tmp_path / "file" / "cache"))
    assert done.returncode == 0
    assert "not cached" in done.stderr


OWN = """
import ctypes, os, sys, torch

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)

class Mismatched(Own):
    def forward(self, input):
        return self.inner(input) @ torch.zeros(5, 5, device=input.device)

class Exits(Own):
    def forward(self, input):
        sys.exit(0)

class Leaves(Own):
    def forward(self, input):
        os._exit(0)

class Crashes(Own):
    def forward(self, input):
        self.inner(input)
        ctypes.string_at(0)

def exits(): sys.exit(0)
def leaves(): os._exit(0)
"""
FAILING = {
    "Mismatched": "mat1 and mat2 shapes cannot be multiplied (2x8 and 5x5) (RuntimeError in inner",
    "Exits": "its code called sys.exit(0)",
    "Leaves": "ended without an answer (exit code 0)",
    "Crashes": "was ended by SIGSEGV in inner",
    "exits": "its code called sys.exit(0)",
    "leaves": "ended without an answer (exit code 0)",
}


@pytest.mark.parametrize("name", FAILING)
def test_a_trace_that_fails_is_an_error_and_never_a_smaller_number(memcalc, tmp_path, name):
    (tmp_path / "mine.py").write_text(OWN)
    done = memcalc("estimate", f"mine:{name}", "--input", "input=float32[2,8]", "-f", "json")
    assert done.returncode == 3
    assert done.stdout == ""
    (said,) = done.stderr.splitlines()
    assert FAILING[name] in said
    # What cannot even be built has no figures of any kind.
    assert ("--method analytic gives the weights" in said) == (name not in ("exits", "leaves"))


@pytest.mark.parametrize("name", ["exits", "leaves"])
def test_a_model_is_built_in_a_child_also_where_nothing_is_traced(memcalc, tmp_path, name):
    (tmp_path / "mine.py").write_text(OWN)
    done = memcalc("estimate", f"mine:{name}", "--method", "analytic")
    assert done.returncode == 3
    assert FAILING[name] in done.stderr


def test_closed_forms_of_a_callable_are_its_exact_parts(memcalc, tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    done = memcalc("estimate", "mine:Mismatched", "--method", "analytic", "-f", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["components"]["weights"] == 4 * 72


def test_where_one_of_several_optimizers_fails_the_others_are_shown_and_the_exit_code_says_so(
    memcalc, monkeypatch
):
    from memcalc.cli import estimate
    from memcalc.errors import EstimateError
    from memcalc.estimation.estimate import answers

    def one_fails(plans, **how):
        first, _ = plans
        yield from answers([first], method="analytic")
        yield EstimateError("The simulated run stopped.")

    monkeypatch.setattr(estimate, "answers", one_fails)
    done = memcalc("estimate", "distilbert-base-cased", "--optim", "adamw,sgd")
    assert done.returncode == 3
    assert "adamw" in done.stdout
    assert done.stderr.startswith("sgd: The simulated run stopped.")


def test_what_is_written_to_a_file_is_named_beside_the_answers_that_are_piped(memcalc, tmp_path):
    done = memcalc("estimate", "gpt2", "--method", "analytic", "-o", "answer.json")
    assert (done.stdout, done.stderr) == ("", "Wrote answer.json.\n")
    piped = memcalc("estimate", "gpt2", "--method", "analytic", "-f", "json", "-o", "/dev/stderr")
    assert "Wrote" not in piped.stderr
