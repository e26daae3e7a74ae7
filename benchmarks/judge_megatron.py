"""Hold the peaks that NVIDIA's CI keeps of Megatron-LM against memcalc's, rank by rank.

    git clone https://github.com/NVIDIA/Megatron-LM && make -C Megatron-LM/megatron/core/datasets
    pip install --no-deps --no-build-isolation git+https://github.com/NVIDIA/apex
    python benchmarks/judge_megatron.py Megatron-LM -o evidence/megatron.json

Cases are those of ``tests/functional_tests/test_cases`` that train from the start, need no
TransformerEngine (``--transformer-impl local``) and have ``mem-max-allocated-bytes`` among their
golden values. Each is simulated as CI starts it, by torchrun over 8 GPUs, with two changes. Its
data are drawn, since CI's are not public: GPT has Megatron's mock data, T5 and BERT documents of
random words. Of apex, which CI has, its Python code is to be installed; memcalc stands in for its
compiled part.

CI logs the memory of the last rank, so that is the one simulated; ``--rank`` names another. Golden
values of the ``lts`` images are of another PyTorch, and stand beside.
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import yaml

_CASES = "tests/functional_tests/test_cases"
_METRIC = "mem-max-allocated-bytes"
_RESTS = "mem-allocated-bytes"
"""Between steps, where nothing of a step lives."""
_SCRIPTS = {
    "t5": "examples/t5/pretrain_t5.py",
    "bert": "examples/bert/pretrain_bert.py",
}
"""Of other models than GPT, by tests/test_utils/recipes (d98e8a64)."""
_WORLD = 8
_LEFT_OUT = frozenset(
    "--data-path --vocab-file --merge-file --tokenizer-type --save --load --tensorboard-dir "
    "--data-cache-path --async-save --use-persistent-ckpt-worker --log-timers-to-tensorboard "
    "--log-validation-ppl-to-tensorboard --log-memory-to-tensorboard".split()
)
"""Where files lie, and what is logged: they change nothing on the GPU."""
_WORDS = 28996
"""Of bert-large-cased, which CI's T5 and BERT read."""
_DATA = """
import sys, numpy, torch
from megatron.core.datasets.indexed_dataset import IndexedDatasetBuilder
path, words = sys.argv[1], int(sys.argv[2])
built = IndexedDatasetBuilder(path + ".bin", dtype=numpy.int32)
draw = numpy.random.default_rng(1)
for _ in range(24000):
    for _ in range(4):
        built.add_item(torch.from_numpy(draw.integers(200, words, 40).astype(numpy.int32)))
    built.end_document()
built.finalize(path + ".idx")
"""


class Row(msgspec.Struct, kw_only=True):
    """A case: what CI read by kind of machine, and what is simulated."""

    case: str
    rank: int | None = None
    golden: dict[str, int] = {}
    resting: dict[str, int] = {}
    """What was allocated after CI's first step, by kind of machine."""
    simulated: int | None = None
    simulated_resting: int | None = None
    error: str = ""

    def differences(self) -> dict[str, float]:
        """By how much of CI's peak the simulated one differs, by kind of machine."""
        if self.simulated is None:
            return {}
        return {name: self.simulated / peak - 1 for name, peak in self.golden.items()}


def cases(checkout: pathlib.Path, wanted: Sequence[str]) -> Iterator[tuple[pathlib.Path, Any]]:
    """Cases that can be simulated, each with its configuration."""
    for path in sorted(checkout.glob(f"{_CASES}/*/*/model_config.yaml")):
        config = yaml.safe_load(path.read_text())
        arguments = config.get("MODEL_ARGS") or {}
        local = arguments.get("--transformer-impl") == "local" or arguments.get("--spec") == "local"
        named = not wanted or any(re.search(one, path.parent.name) for one in wanted)
        if local and named and config.get("TEST_TYPE") == "regular" and golden(path.parent):
            yield path.parent, config


def golden(folder: pathlib.Path, metric: str = _METRIC) -> dict[str, list[int]]:
    """The readings that CI keeps of a case, step by step, by environment and machine."""
    found = {}
    for path in sorted(folder.glob("golden_values_*.json")):
        values = json.loads(path.read_text()).get(metric, {}).get("values", {})
        if read := [int(value) for value in values.values() if value != "nan"]:
            found[path.stem.removeprefix("golden_values_")] = read
    return found


def command(folder: pathlib.Path, config: Any, scratch: pathlib.Path) -> list[str]:
    """What starts a case, with data that are drawn."""
    words = []
    for name, value in config["MODEL_ARGS"].items():
        if name not in _LEFT_OUT and value is not False:
            words += [name] if value is True else [name, str(value)]
    model = folder.parent.name
    if model in _SCRIPTS:
        data, vocabulary = str(scratch / "data"), str(scratch / "vocab.txt")
        words += ["--data-path", data, "--vocab-file", vocabulary]
        words += ["--tokenizer-type", "BertWordPieceCase", "--data-cache-path", str(scratch)]
    else:
        words += ["--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "50256"]
    if "--no-persist-layer-norm" not in words:
        words.append("--no-persist-layer-norm")
    variables = [f"{name}={value}" for name, value in config.get("ENV_VARS", {}).items()]
    script = _SCRIPTS.get(model, "pretrain_gpt.py")
    return ["env", *variables, "torchrun", "--nproc-per-node", str(_WORLD), script, *words]


def prepare(checkout: pathlib.Path, scratch: pathlib.Path) -> None:
    """Write what the cases read in place of what they have in CI."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    names = [*special, *(f"w{number}" for number in range(_WORDS - len(special)))]
    (scratch / "vocab.txt").write_text("\n".join(names))
    made = [sys.executable, "-c", _DATA, str(scratch / "data"), str(_WORDS)]
    subprocess.run(made, cwd=checkout, check=True)


def simulate(typed: Sequence[str], checkout: pathlib.Path, scratch: pathlib.Path, rank: str) -> Any:
    """Return the answer of memcalc for one rank, or what it said last."""
    found = scratch / "found.json"
    found.unlink(missing_ok=True)
    options = ["--gpu", f"{_WORLD}xa100-80gb", "--rank", rank, "-o", str(found)]
    run = [sys.executable, "-m", "memcalc", "simulate", *options, "--", *typed]
    folders = str(scratch), str(checkout), os.environ.get("PYTHONPATH")
    path = os.pathsep.join(filter(None, folders))
    # BERT's tokenizer asks a hub for names first, and takes the file then.
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        run, cwd=checkout, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode or not found.exists():
        said = [line for line in done.stderr.splitlines() if "rror" in line]
        return (said or done.stderr.splitlines() or [f"exit code {done.returncode}"])[-1][:300]
    return json.loads(found.read_text())


def judge(folder: pathlib.Path, config: Any, checkout: pathlib.Path, rank: str) -> Row:
    """Simulate one case."""
    row = Row(
        case=f"{folder.parent.name}/{folder.name}",
        golden={name: max(read) for name, read in golden(folder).items()},
        resting={name: read[0] for name, read in golden(folder, _RESTS).items()},
    )
    with tempfile.TemporaryDirectory() as scratch:
        place = pathlib.Path(scratch)
        prepare(checkout, place)
        answer = simulate(command(folder, config, place), checkout, place, rank)
    if isinstance(answer, str):
        row.error = answer
    else:
        row.rank, row.simulated = answer["rank"], answer["peak"]["allocated"]
        row.simulated_resting = answer["phases"][-1]["first_step_allocated"]
    return row


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown."""
    lines = ["| case | rank | CI, bytes | memcalc | difference |", "|---|---:|---:|---:|---:|"]
    for row in rows:
        for name, peak in row.golden.items():
            ours = f"{row.simulated:,}" if row.simulated is not None else row.error
            off = row.differences().get(name)
            lines.append(
                f"| {row.case} | {row.rank if row.rank is not None else ''} | {peak:,} ({name}) "
                f"| {ours} | {'' if off is None else format(off, '+.3%')} |"
            )
    return "\n".join(lines)


def main() -> None:
    """Judge what is asked for, and write the table as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("checkout", type=pathlib.Path)
    parser.add_argument("-o", "--output", type=pathlib.Path)
    parser.add_argument("--rank", default="last", help="number, first or last (as CI logs)")
    parser.add_argument("--cases", nargs="*", default=(), help="patterns of names; default: all")
    asked = parser.parse_args()
    checkout = asked.checkout.resolve()
    if not list(checkout.glob("megatron/core/datasets/helpers_cpp*")):
        sys.exit(f"Compile its helpers first: make -C {asked.checkout}/megatron/core/datasets")
    revision = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    said = subprocess.run(revision, capture_output=True, text=True, check=False).stdout.strip()
    rows: list[Row] = []
    for folder, config in cases(checkout, asked.cases):
        rows.append(judge(folder, config, checkout, asked.rank))
        print(table(rows[-1:]), flush=True)
        if asked.output is not None:
            kept = {"source": f"NVIDIA/Megatron-LM {said}", "rows": msgspec.to_builtins(rows)}
            asked.output.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
