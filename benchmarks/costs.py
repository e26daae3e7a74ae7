"""What memcalc's commands cost, against what cannot be avoided.

    python benchmarks/costs.py [commands|waits|check|simulate ...] [--rounds 5]

commands: whole commands in turn, in every round once, so that a machine that is busy for a while is
busy for all of them. Ratios are those of medians: of the wall clock, for which the bounds are on an
idle machine, and of the processor time of the command and its children, which other work disturbs
less. Each command has run once before, so bytecode is there.

waits: questions that ask several estimates, in multiples of one cold estimate of the same plan; how
long until the first row is shown, and how many runs were made.

check: 50 budgets over 10 models, cold and warm; the yardstick is one cold estimate of each of the
ten plans, every one in a process of its own, as somebody would do by hand.

simulate: a step of a script, in processor time, where values are followed and where not.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

PYTHON = sys.executable
MEMCALC = (PYTHON, "-m", "memcalc")
MAIN = [*MEMCALC, "estimate", "distilbert-base-cased", "--optim", "adam8bit"]
LARGE = [*MEMCALC, "estimate", "meta-llama/Llama-3.1-405B", "--precision", "bf16", "--no-cache"]
SHARDED = [
    *(*MEMCALC, "estimate", "meta-llama/Llama-3.1-70B", "--precision", "bf16", "--no-cache"),
    *("--parallel", "fsdp2", "--devices", "8"),
]
LIBRARIES = "import typer, rich.table"
MODEL = "import torch; from transformers import DistilBertForSequenceClassification"
COMMANDS = {
    "python -c 'import typer, rich.table'": [PYTHON, "-c", LIBRARIES],
    "memcalc --help": [*MEMCALC, "--help"],
    "estimate, answered from the cache": MAIN,
    "estimate --method analytic": [*MAIN, "--method", "analytic", "--no-cache"],
    "python -c (torch and the model class)": [PYTHON, "-c", MODEL],
    "estimate distilbert-base-cased, cold": [*MAIN, "--no-cache"],
    "estimate Llama-3.1-405B, cold": LARGE,
    "estimate Llama-3.1-70B FSDP2 x 8, cold": SHARDED,
}
BARE, HELP, CACHED, ANALYTIC, IMPORTS, COLD, LARGEST, SPREAD = COMMANDS
BOUNDS = (
    *((HELP, BARE, 1.3), (CACHED, BARE, 2.5), (ANALYTIC, BARE, 2.5)),
    *((COLD, IMPORTS, 1.15), (LARGEST, COLD, 1.25), (SPREAD, COLD, 1.5)),
)
"""A command may take so many times as long as its yardstick."""
MODELS = (
    *("distilbert-base-cased", "gpt2", "bert-base-uncased", "Qwen/Qwen2.5-0.5B", "roberta-base"),
    *("facebook/opt-125m", "HuggingFaceTB/SmolLM2-135M", "EleutherAI/pythia-160m", "t5-small"),
    "meta-llama/Llama-3.1-8B",
)
LIMITS = """peak.allocated = "900 GiB"
peak.reserved = "900 GiB"
optimizer_state = "900 GiB"
activations = "900 GiB"
bytes_per_parameter = 900
"""
STEP = """
import json, sys, time, torch
from torch import nn
torch.backends.cudnn.enabled = False
layers = [nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True) for _ in range(4)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
times = []
for _ in range(20):
    begin = time.process_time()
    loss = model(torch.randn(8, 64, 256, device="cuda")).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.process_time() - begin)
print(json.dumps(sorted(times)[10]), file=sys.stderr)
"""
SIMULATE = """
import sys
from memcalc.script.simulate import make_plan, simulate
plan = make_plan(["python", "step.py"], steps=0, gpu="h100-sxm")
simulate(plan, follows_values=bool(sys.argv[1]))
"""
LLAMA = {"model": "meta-llama/Llama-3.1-8B", "preset": "qlora", "gpu": "4090", "batch": 1}
PLANS = (
    {"model": "gpt2", "gpu": "t4", "batch": 64},
    {"model": "bert-large-cased", "gpu": "t4", "batch": 32},
    LLAMA,
)
OVER_GPUS = {"model": "meta-llama/Llama-3.1-8B", "gpu": "8xh100", "batch": 1, "seq": 1024}
WAITS = {"fit": 4, "fit --gpus": 5, "explain": 5, "suggest": 7, "suggest, 8 GPUs": 10}
"""How many times as long as one cold estimate a question may take."""
FIRST_ROW = 1.5
"""How many times as long as that the first row may take."""
_ASK = """
import importlib, json, re, resource, sys, time
from memcalc.catalog.plan import make
from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
verb, plan = sys.argv[1], make(json.loads(sys.argv[2]))
runs, rows, run = [], [], engine._run
def count(*words, **request):
    runs.extend([words] * (not request.get("inventory")))
    return run(*words, **request)
engine._run = count
def note_rows(so_far):
    shown = {"fit": "fitted", "explain": "explained", "suggest": "suggested"}
    report = importlib.import_module("memcalc.report." + shown[re.match("[a-z]+", verb)[0]])
    rows.extend([time.perf_counter() - begin] * any(report.row_words(so_far)))
how = {"use_cache": False, "seen": note_rows}
begin = time.perf_counter()
if verb == "estimate":
    Answers(use_cache=False).predict_one(plan)
elif verb.startswith("fit"):
    from memcalc.advice.fit.fit import answer
    answer(plan, ["gpus"] if verb != "fit" else ["batch", "seq"], **how)
elif verb == "explain":
    from memcalc.advice.explain.explain import explain_plan
    from memcalc.report.explained import HELPFUL
    explain_plan(plan, most=HELPFUL, **how)
else:
    from memcalc.advice.suggest.suggest import suggest_plan
    suggest_plan(plan, **how)
wall = time.perf_counter() - begin
engine.close()
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
cpu = sum(one.ru_utime + one.ru_stime for one in used)
print(json.dumps([wall, cpu, rows[0] if rows else wall, len(runs)]))
"""
_WATCH = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


class Cost(NamedTuple):
    """What one run took."""

    wall: float
    cpu: float
    peak: float
    """Largest resident set of one process, in MiB."""


def spent(*command: str, folder: str) -> Cost:
    """Run a command in a folder, and return what it and its children took."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    environment = {**os.environ, "MEMCALC_CACHE": f"{folder}/cache"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    watched = [PYTHON, "-c", _WATCH, *command]
    done = subprocess.run(
        watched, check=True, capture_output=True, text=True, cwd=folder, env=environment
    )
    wall, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall, cpu, int(done.stdout.rsplit("\n", 2)[-2]) / 2**20)


def commands(folder: str, rounds: int) -> None:
    seen: dict[str, list[Cost]] = {name: [] for name in COMMANDS}
    for number in range(rounds + 1):
        for name, command in COMMANDS.items():
            cost = spent(*command, folder=folder)
            seen[name] += [cost] if number else []
    found = {
        name: Cost(*map(statistics.median, zip(*costs, strict=True)))
        for name, costs in seen.items()
    }
    print(f"{'':40} {'wall':>8} {'cpu':>8} {'peak of a process':>20}")
    for name, cost in found.items():
        print(f"{name:40} {cost.wall:6.3f} s {cost.cpu:6.3f} s {cost.peak:16.1f} MiB")
    for command, yardstick, most in BOUNDS:
        wall = found[command].wall / found[yardstick].wall
        cpu = found[command].cpu / found[yardstick].cpu
        verdict = "within" if wall <= most else "above"
        print(f"{command} / {yardstick}: {wall:.2f} of wall, {cpu:.2f} of cpu: {verdict} {most}")


def waits(folder: str, rounds: int) -> None:
    environment = {**os.environ, "MEMCALC_CACHE": f"{folder}/cache"}

    def ask(verb: str, plan: dict[str, object]) -> list[float]:
        words = [PYTHON, "-c", _ASK, verb, json.dumps(plan)]
        said = subprocess.check_output(words, text=True, cwd=folder, env=environment)
        found: list[float] = json.loads(said.splitlines()[-1])
        return found

    for plan in (*PLANS, OVER_GPUS):
        over = plan is OVER_GPUS
        one = ask("estimate", plan)
        print(f"{plan['model']}: one cold estimate {one[0]:.1f} s, {one[1]:.1f} s cpu")
        for verb, most in WAITS.items():
            if verb.endswith("8 GPUs") is over:
                wall, cpu, first, runs = ask(verb, plan)
                verdict = "within" if wall <= most * one[0] else "above"
                row = "within" if first <= FIRST_ROW * one[0] else "above"
                print(
                    f"  {verb:16} {wall / one[0]:5.2f} of wall, {cpu / one[1]:5.2f} of cpu: "
                    f"{verdict} {most}; first row {first / one[0]:.2f}: {row} {FIRST_ROW}; "
                    f"{runs} runs"
                )


def check(folder: str, rounds: int) -> None:
    runs = "\n".join(
        f'[runs.r{number}]\nmodel = "{model}"\n[runs.r{number}.limits]\n{LIMITS}'
        for number, model in enumerate(MODELS)
    )
    Path(folder, "memcalc.toml").write_text(f"[defaults]\nbatch = 4\nseq = 128\n{runs}")

    def wall(*words: str) -> float:
        return spent(*MEMCALC, *words, folder=folder).wall

    settings = ("--batch", "4", "--seq", "128", "--no-cache")
    alone = [wall("estimate", name, *settings) for name in MODELS]
    cold = wall("check")
    warm = statistics.median(wall("check") for _ in range(rounds))
    print(f"one cold estimate (median of ten models)  {statistics.median(alone):6.2f} s")
    print(f"check of 50 budgets, cold                 {cold:6.2f} s")
    print(f"check of 50 budgets, warm                 {warm:6.2f} s")
    print(f"cold check / one cold estimate            {cold / statistics.median(alone):6.2f}")


def simulate(folder: str, rounds: int) -> None:
    Path(folder, "step.py").write_text(STEP)

    def step(follows_values: bool) -> float:
        words = [PYTHON, "-c", SIMULATE, str(follows_values or "")]
        done = subprocess.run(words, check=True, capture_output=True, cwd=folder)
        return float(next(line for line in done.stderr.splitlines() if line[:2] == b"0."))

    followed, own = step(follows_values=True), step(follows_values=False)
    print(f"a step: {1000 * followed:.1f} ms of processor time, bar 1.3 x, ", end="")
    print(f"is {followed / own:.1f} x of {1000 * own:.1f} ms with values not followed")


def main() -> None:
    parts = {"commands": commands, "waits": waits, "check": check, "simulate": simulate}
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("part", nargs="*", choices=[*parts, []], help="all without any")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    for name in arguments.part or parts:
        with tempfile.TemporaryDirectory() as folder:
            parts[name](folder, arguments.rounds)


if __name__ == "__main__":
    main()
