"""Write what answers look like at a terminal: tests/data/answers, and texts of two widths.

The answers are records as memcalc writes them (.json); a text is how one is shown. Type --answers
to make the records anew as well.
"""

import pathlib
import subprocess
import sys

from memcalc.explanation.difference import Difference
from memcalc.explanation.records import Explanation
from memcalc.files.artifact import part, read
from memcalc.files.results import load, predictions
from memcalc.fitting.records import FitAnswer
from memcalc.report import accuracy, cards, differences, explained, fitted, measured, suggested
from memcalc.report import predictions as predicted
from memcalc.report.blocks import terminal
from memcalc.suggestions.records import Cards, Suggestions

FOLDER = pathlib.Path(__file__).parent.parent / "tests" / "data" / "answers"
WIDTHS = (80, 120)
COMMANDS = {
    "fits": "estimate gpt2 --gpu t4",
    "does-not-fit": "estimate Qwen/Qwen2.5-7B --gpu 4090 --precision bf16",
    "no-gpu": "estimate distilbert-base-cased --optim adam8bit",
    "several": "estimate gpt2 --gpu t4 --optim adamw,adam8bit,sgd",
    "explanation": "explain gpt2 --gpu t4 --batch 64",
    "fit": "fit gpt2 --gpu t4",
    "suggestions": "suggest gpt2 --gpu t4 --batch 64",
    "cards": "suggest gpt2 --batch 64",
    "decode": "estimate Qwen/Qwen2.5-0.5B --gpu t4 --precision fp16 --generate 64",
    "measured": "measure gpt2 --optim adamw,sgd --device cpu --batch 1 --seq 16 --steps 2",
    "difference": "diff 'gpt2 --gpu t4' 'gpt2 --gpu t4 --checkpointing'",
}
NAMES = (*COMMANDS, "fits-verbose", "compared")


def shown(name: str, width: int) -> str:
    """An answer as a terminal of this width shows it."""
    if name in ("measured", "compared"):
        runs = load(FOLDER / "measured.json")
        return terminal((measured if name == "measured" else accuracy).blocks(runs), width=width)
    path = FOLDER / f"{name.removesuffix('-verbose')}.json"
    data = read(path)
    if name == "explanation":
        found = part(Explanation, data["record"], path, "explanation")
        blocks = explained.blocks(found, 12, verbose=False)
    elif name == "fit":
        blocks = fitted.blocks(part(FitAnswer, _body(data), path, "fit"), verbose=False)
    elif name == "suggestions":
        found = part(Suggestions, _body(data), path, "suggestions")
        blocks = suggested.blocks(found, suggested.Work(), verbose=False)
    elif name == "cards":
        blocks = cards.blocks(part(Cards, _body(data), path, "cards"), verbose=False)
    elif name == "difference":
        blocks = differences.blocks(part(Difference, _body(data), path, "difference"), 12)
    else:
        blocks = predicted.blocks(predictions(data, path), verbose=name.endswith("-verbose"))
    return terminal(list(blocks), width=width)


def golden(name: str, width: int) -> pathlib.Path:
    """The file that holds it."""
    return FOLDER / f"{name}-{width}.txt"


def _body(data: dict) -> dict:
    return {key: value for key, value in data.items() if key not in ("schema", "kind", "memcalc")}


def main() -> None:
    """Write the texts, and with --answers the records before them."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    if "--answers" in sys.argv:
        for name, words in COMMANDS.items():
            line = f"{sys.executable} -m memcalc {words} -o {FOLDER / name}.json"
            subprocess.run(line, shell=True, check=True)
    for name in NAMES:
        for width in WIDTHS:
            golden(name, width).write_text(shown(name, width))


if __name__ == "__main__":
    main()
