"""Run every model type that transformers registers, at its default config; print a table.

    python benchmarks/coverage.py [--task causal-lm] [--output evidence/coverage.json]
    python benchmarks/coverage.py --again bamba,blt --output evidence/coverage.json
    python benchmarks/coverage.py --markdown evidence/coverage.json > docs/coverage.md

For each model type and task: whether it runs, or why not. A default config that transformers itself
cannot build on the meta device is listed with transformers' own error and not counted. Where a
run fails, the same model, with fewer layers, runs a step on the CPU with real tensors and the
same inputs (real_run.py): what PyTorch or transformers refuse there as well is listed with their
own error and not counted either, unless it trains without keys and values and is traced so.
"""

import argparse
import collections
import json
import os
import pathlib
import re
import resource
import signal
import sys
import tempfile

from memcalc.catalog import architectures

TASKS = (
    "causal-lm",
    "sequence-classification",
    "masked-lm",
    "seq2seq-lm",
    "image-classification",
    "ctc",
    "speech-seq2seq",
)
SECONDS = 600
WITHOUT = "without keys and values (--no-kv-cache)"
"""How a pair is traced that cannot be trained as its default config says."""


def attempt(model_type: str, task: str) -> tuple[str, str]:
    """(outcome, reason), in a process of its own: a crash or a hang costs one model."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        # Of the processor, whatever else the machine does.
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 10))
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        outcome = _trace(model_type, task)
        os.write(writer, json.dumps(outcome).encode()[:4000])
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if text:
        outcome, reason = json.loads(text)
        return outcome, reason
    ended = os.WTERMSIG(status)
    if ended == signal.SIGXCPU:
        return "failed", f"took more than {SECONDS} seconds of a processor"
    return "failed", f"the process ended by signal {ended}"


def _trace(model_type: str, task: str) -> tuple[str, str]:
    import real_run
    import torch
    from msgspec.structs import replace

    from memcalc.catalog import models
    from memcalc.errors import MemcalcError
    from memcalc.estimation.engine import engine
    from memcalc.records.plan import Plan
    from memcalc.workload.model import build
    from memcalc.workload.tasks import choose

    config = pathlib.Path(tempfile.mkdtemp()) / "config.json"
    config.write_text(json.dumps({"model_type": model_type}))
    source = models.find(str(config))
    fixed = model_type in ("perceiver", "reformer")
    plan = Plan(model=str(config), task=task, batch=2, seq=None if fixed else 64, optim="sgd")
    try:
        with torch.device("meta"):
            build(source, choose(source, task))
    except MemcalcError as error:
        return "unbuildable", str(error).replace(str(config), model_type)

    def traced(plan: Plan) -> str:
        try:
            engine.predict(plan)
        except MemcalcError as error:
            return " ".join(str(error).split())[:200]
        return ""

    reason = traced(plan)
    if not reason:
        return "traced", ""
    refused = real_run.refusal(plan, model_type)
    if not refused:
        return "failed", reason
    without = replace(plan, kv_cache=False)
    if real_run.refusal(without, model_type):
        return "untrainable", refused
    reason = traced(without)
    return ("failed", reason) if reason else ("traced", f"{WITHOUT}: {refused}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--again", default="", help="these model types alone; others are kept")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path, help="print the page of a saved table")
    arguments = parser.parse_args()
    if arguments.markdown:
        sys.stdout.write(page(json.loads(arguments.markdown.read_text())))
        return
    import tables
    import torch  # noqa: F401  Imported before the forks, so that each pays nothing.
    import transformers  # noqa: F401

    rows = []
    again = set(arguments.again.split(",")) if arguments.again else None
    before = json.loads(arguments.output.read_text())["rows"] if again else []
    kept = {(row[0], row[1]): row for row in before}
    for task in TASKS if not arguments.task else (arguments.task,):
        for model_type, entry in architectures.table().items():
            if task in entry["heads"] and arguments.only in model_type:
                if again is not None and model_type not in again:
                    rows.extend([kept[task, model_type]] if (task, model_type) in kept else [])
                    continue
                outcome, reason = attempt(model_type, task)
                rows.append((task, model_type, outcome, reason))
                if outcome != "traced":
                    print(f"{task} {model_type}: {outcome}: {reason}", flush=True)
    counts = collections.Counter(outcome for _, _, outcome, _ in rows)
    built = counts["traced"] + counts["failed"]
    share = counts["traced"] / built if built else 0.0
    print(f"{counts['traced']} of {built} that can be built run ({share:.1%}); "
          f"{counts['untrainable']} cannot be trained, {counts['unbuildable']} cannot be built",
          file=sys.stderr)  # fmt: skip
    if arguments.output:
        versions = tables.versions(("torch", "transformers"))
        tables.write_rows(arguments.output, {"versions": versions}, "rows", rows)


PAGE = """# Which architectures run

<!-- Written by benchmarks/coverage.py; edit that. -->

Every model type that transformers registers for a task, built at its default config (torch
{torch}, transformers {transformers}) and trained for a few steps on the simulated GPU, 2 x 64
tokens. Weights of a trained model are not needed for this, and neither is its size: what counts
is whether the code of the architecture runs.

memcalc runs it on PyTorch's own CUDA code over a stub driver.

{summary}

A default config is a class's own defaults, not that of a published model: some cannot even be
built, and some that can be built cannot be trained. The share is of those that can.

## Does not run

`memcalc estimate` names the module and operator at which such a run fails; `--method analytic`
answers from closed forms.

{failed}

## Runs without keys and values

With the cache that their default config asks for, these fail in a real run on the CPU as well;
with `--no-kv-cache` they train there and here.

{without}

## Cannot be trained

A step on the CPU, with real tensors and the same inputs, fails as well: the words are PyTorch's
or transformers'.

{untrainable}

## Not built

transformers' own words.

{unbuildable}
"""


def page(saved: dict) -> str:
    """The table as people read it."""
    rows = saved["rows"]
    by_task: dict[str, collections.Counter] = {}
    for task, _, outcome, _ in rows:
        by_task.setdefault(task, collections.Counter())[outcome] += 1
    total = sum(by_task.values(), collections.Counter())
    lines = [
        "| task | can be trained | runs | share | cannot be trained | not built |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    for task, counts in [*by_task.items(), ("all", total)]:
        built = counts["traced"] + counts["failed"]
        share = counts["traced"] / built
        lines.append(
            f"| {task} | {built} | {counts['traced']} | {share:.1%} "
            f"| {counts['untrainable']} | {counts['unbuildable']} |"
        )
    return PAGE.format(
        **saved["versions"],
        summary="\n".join(lines),
        failed=_reasons(rows, "failed") or "None.",
        without=_reasons(rows, "traced"),
        untrainable=_reasons(rows, "untrainable"),
        unbuildable=_reasons(rows, "unbuildable"),
    )


def _reasons(rows: list, wanted: str) -> str:
    """One line for each model type, its tasks together."""
    found: dict[tuple[str, str], list[str]] = {}
    for task, model_type, outcome, reason in rows:
        if outcome == wanted and reason:
            text = reason.removeprefix(f"{WITHOUT}: ")
            text = re.sub(r"^transformers cannot build \w+ of \S+: ", "", text)
            found.setdefault((model_type, " ".join(text.split())[:140]), []).append(task)
    return "\n".join(
        f"- `{model_type}` ({', '.join(tasks)}): {text}"
        for (model_type, text), tasks in sorted(found.items())
    )


if __name__ == "__main__":
    main()
