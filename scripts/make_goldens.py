"""Write what verbs say at a terminal: answers in tests/data/answers, and their texts of two widths.

The answers are records as memcalc writes them (.json); a text is what a verb prints of one, or of
what memcalc knows. Type --answers to make the records anew as well.
"""

import contextlib
import io
import json
import os
import pathlib
import shlex
import subprocess
import sys
from fractions import Fraction
from unittest.mock import patch

from memcalc.__main__ import run
from memcalc.budgets import starter
from memcalc.dialects import Recipe
from memcalc.files import artifact
from memcalc.files.results import load, predictions
from memcalc.measure.doctor import Fact
from memcalc.measure.watched_command import CommandResult
from memcalc.report import measured, terminal

ROOT = pathlib.Path(__file__).parent.parent
FOLDER = ROOT / "tests" / "data" / "answers"
WIDTHS = (80, 120)
ANSWERS = {
    "fits": "estimate gpt2 --gpu t4",
    "does-not-fit": "estimate Qwen/Qwen2.5-7B --gpu 4090 --precision bf16",
    "no-gpu": "estimate distilbert-base-cased --optim adam8bit",
    "several": "estimate gpt2 --gpu t4 --optim adamw,adam8bit,sgd",
    "ranks": "estimate distilbert-base-cased --gpu 4xt4 --parallel fsdp2",
    "counted": "fit meta-llama/Llama-3.2-1B --gpu t4 --batch 1 --seq 256 --count",
    "explanation": "explain gpt2 --gpu t4 --batch 64",
    "fit": "fit gpt2 --gpu t4",
    "suggestions": "suggest gpt2 --gpu t4 --batch 64",
    "cards": "suggest gpt2 --batch 64",
    "decode": "estimate Qwen/Qwen2.5-0.5B --gpu t4 --precision fp16 --generate 64",
    "measured": "measure gpt2 --optim adamw,sgd --device cpu --batch 1 --seq 16 --steps 2",
    "difference": "diff 'gpt2 --gpu t4' 'gpt2 --gpu t4 --checkpointing'",
    "simulated": "simulate --gpu t4 -- python benchmarks/scripts/nano_gpt.py",
    "command": "run -- python -c 'import time; time.sleep(0.5)'",
}
"""What makes each record."""
TYPED = {
    **{name: f"show {name}.json" for name in ANSWERS if name not in ("measured", "command")},
    "fits-verbose": "show fits.json -v",
    "measured": "show measured.json",
    "compared": "compare measured.json",
    "check": "check budgets.toml --from fits.json --from no-gpu.json",
    "models": "list models",
    "optimizers": "list optimizers",
    "gpus": "list gpus",
    "contexts": "list gpus --context",
}
"""What shows each text, typed beside the records."""
MADE = ("command", "doctor", "init")
"""Texts of records alone: their verbs look at the machine, or write files."""
NAMES = (*TYPED, *MADE)


def shown(name: str, width: int) -> str:
    """What a terminal of this width shows."""
    if name in MADE:
        return _made(name, width)
    words = shlex.split(TYPED[name])
    with (
        contextlib.chdir(FOLDER),
        patch.dict(os.environ, COLUMNS=str(width), NO_COLOR="1"),
        contextlib.redirect_stdout(io.TextIOWrapper(io.BytesIO(), encoding="utf-8")) as said,
    ):
        code = run(words)
    said.seek(0)
    if code != (words[0] == "check"):
        raise SystemExit(f"memcalc {TYPED[name]}: {said.read()}")
    return said.read()


def _made(name: str, width: int) -> str:
    if name == "doctor":
        facts = artifact.decode(list[Fact], json.loads((FOLDER / "doctor.json").read_text()))
        return terminal.facts_text(facts, width)
    if name == "command":
        (run,) = load(FOLDER / "command.json")
        gpus = (run.measurement.gpu,) if run.measurement.gpu is not None else ()
        return measured.render(CommandResult(code=0, measurement=run.measurement, gpus=gpus), width)
    path = FOLDER / "fits.json"
    (prediction,) = predictions(artifact.read(path), path)
    note = "warmup_ratio, weight_decay and lr_scheduler_type do not change memory"
    configured = Recipe(file="train.py", dialect="TrainingArguments", unread=(note,))
    return starter.text(prediction, "gpt2", Fraction(5), configured)


def golden(name: str, width: int) -> pathlib.Path:
    """The file that holds it."""
    return FOLDER / f"{name}-{width}.txt"


def _answer(name: str, words: str) -> None:
    verb, rest = words.split(" ", 1)
    line = f"{sys.executable} -m memcalc {verb} -o {FOLDER / name}.json {rest}"
    (FOLDER / f"{name}.json").unlink(missing_ok=True)
    subprocess.run(line, shell=True, check=True, cwd=ROOT)


def main() -> None:
    """Write the texts, and with --answers the records before them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if "--answers" in sys.argv:
        for name, words in ANSWERS.items():
            _answer(name, words)
    for name in NAMES:
        for width in WIDTHS:
            golden(name, width).write_text(shown(name, width))


if __name__ == "__main__":
    main()
