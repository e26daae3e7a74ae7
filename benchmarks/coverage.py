"""Trace every model type that transformers registers, at its default config; print a table.

    python benchmarks/coverage.py [--task causal-lm] [--output evidence/coverage.json]
    python benchmarks/coverage.py --markdown evidence/coverage.json > docs/coverage.md

For each model type and task: traced, or why not. A default config that transformers itself
cannot build on the meta device is listed with transformers' own error and not counted.
"""

import argparse
import collections
import importlib.metadata
import json
import os
import pathlib
import re
import signal
import sys

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


def attempt(model_type: str, task: str) -> tuple[str, str]:
    """(outcome, reason), in a process of its own: a crash or a hang costs one model."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        signal.alarm(SECONDS)
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
    if ended == signal.SIGALRM:
        return "failed", f"took longer than {SECONDS} seconds"
    return "failed", f"the process ended by signal {ended}"


def _trace(model_type: str, task: str) -> tuple[str, str]:
    import torch

    from memcalc import registry
    from memcalc.catalog.models import ModelSource
    from memcalc.errors import MemcalcError
    from memcalc.estimation.question import ASSUMED
    from memcalc.records.plan import Plan
    from memcalc.trace.run import trace
    from memcalc.workload.model import build
    from memcalc.workload.program import program_of
    from memcalc.workload.tasks import choose

    source = ModelSource(name=model_type, origin="local", config={"model_type": model_type})
    fixed = model_type in ("perceiver", "reformer")
    plan = Plan(model=model_type, task=task, batch=2, seq=None if fixed else 64, optim="sgd")
    try:
        head = choose(source, task)
        with torch.device("meta"):
            model = build(source, head)
    except MemcalcError as error:
        return "unbuildable", str(error)
    try:
        program = program_of(plan, registry.find("sgd", {}), model, head.name)
        trace(program, ASSUMED)
    except Exception as error:
        return "failed", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"
    return "traced", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--task", default="")
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path, help="print the page of a saved table")
    arguments = parser.parse_args()
    if arguments.markdown:
        sys.stdout.write(page(json.loads(arguments.markdown.read_text())))
        return
    import torch  # noqa: F401  Imported before the forks, so that each pays nothing.
    import transformers  # noqa: F401

    rows = []
    for task in TASKS if not arguments.task else (arguments.task,):
        for model_type, entry in architectures.table().items():
            if task in entry["heads"] and arguments.only in model_type:
                outcome, reason = attempt(model_type, task)
                rows.append((task, model_type, outcome, reason))
                if outcome != "traced":
                    print(f"{task} {model_type}: {outcome}: {reason}", flush=True)
    counts = collections.Counter(outcome for _, _, outcome, _ in rows)
    built = counts["traced"] + counts["failed"]
    share = counts["traced"] / built if built else 0.0
    print(f"{counts['traced']} of {built} that can be built are traced ({share:.1%}); "
          f"{counts['unbuildable']} cannot be built", file=sys.stderr)  # fmt: skip
    if arguments.output:
        lines = ",\n".join(json.dumps(row) for row in rows)
        versions = {name: importlib.metadata.version(name) for name in ("torch", "transformers")}
        head = json.dumps({"versions": versions})[:-1]
        arguments.output.write_text(f'{head}, "rows": [\n{lines}\n]}}\n')


PAGE = """# Which architectures are traced

<!-- Written by benchmarks/coverage.py; edit that. -->

Every model type that transformers registers for a task, built at its default config (torch
{torch}, transformers {transformers}) and trained for two steps on the simulated GPU, 2 x 64
tokens. Weights of a trained model are not needed for this, and neither is its size: what counts
is whether the code of the architecture runs.

{summary}

Where the trace fails, `memcalc estimate` says at which module and operator, and answers from
closed forms. A default config is a class's own defaults, not that of a published model: some
cannot be trained in a real run either, and some cannot even be built.

## Not traced

{failed}

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
    lines = ["| task | built | traced | share | not built |", "|---|--:|--:|--:|--:|"]
    for task, counts in [*by_task.items(), ("all", total)]:
        built = counts["traced"] + counts["failed"]
        share = counts["traced"] / built
        lines.append(
            f"| {task} | {built} | {counts['traced']} | {share:.1%} | {counts['unbuildable']} |"
        )
    return PAGE.format(
        **saved["versions"],
        summary="\n".join(lines),
        failed=_reasons(rows, "failed"),
        unbuildable=_reasons(rows, "unbuildable"),
    )


def _reasons(rows: list, wanted: str) -> str:
    """One line for each model type, its tasks together."""
    found: dict[tuple[str, str], list[str]] = {}
    for task, model_type, outcome, reason in rows:
        if outcome == wanted:
            text = re.sub(r"^transformers cannot build \w+ of [\w-]+: ", "", reason)
            found.setdefault((model_type, " ".join(text.split())[:140]), []).append(task)
    return "\n".join(
        f"- `{model_type}` ({', '.join(tasks)}): {text}"
        for (model_type, text), tasks in sorted(found.items())
    )


if __name__ == "__main__":
    main()
