"""Record real runs of transformers' Trainer and of a script around accelerate's Accelerator.

What ``record_standin.py`` does for memcalc's own loops: the file it writes is what the estimates of
``--loop trainer`` and ``--loop accelerate`` are held against. The runs are in ``trainer_runs.py``.

    python benchmarks/record_trainer.py configs/suites/standin-loops.toml evidence/standin/NAME.json
"""

import argparse
import json
import multiprocessing
import os
import pathlib
import sys
import time
from importlib.metadata import version

import torch
import transformers
from record_standin import settings, write

from memcalc.catalog.plan import load
from memcalc.files.artifact import decode, encode
from memcalc.measure.process import versions
from memcalc.records.plan import Plan

_ = transformers.PreTrainedModel  # imported before the runs fork


def _child(plan: Plan, pipe) -> None:
    try:
        # Made here: importing the Trainer imports bitsandbytes, which asks CUDA at once.
        from trainer_runs import record

        found = record(plan)
        facts = torch.cuda.get_device_properties(0)
        found["environment"] = {
            "device": facts.name,
            **versions(),
            "accelerate": version("accelerate"),
        }
        pipe.send(found)
    except BaseException as error:
        if os.environ.get("MEMCALC_DEBUG"):
            raise
        pipe.send(f"{type(error).__name__}: {error}"[:300])
    finally:
        pipe.close()
        sys.stdout.flush()
        # Shutting the interpreter down would ask the stand-in for what it does not have.
        os._exit(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--only", default="", help="only runs whose plan contains this")
    arguments = parser.parse_args()
    told = settings()
    recorded = json.loads(arguments.output.read_text()) if arguments.output.exists() else {}
    kept = {json.dumps(encode(decode(Plan, r["plan"]))): r for r in recorded.get("runs", [])}
    environment = recorded.get("environment", {})
    fork = multiprocessing.get_context("fork")
    for plan in load(arguments.suite):
        text = json.dumps(encode(plan))
        if text in kept or arguments.only not in text:
            continue
        started = time.monotonic()
        ours, theirs = fork.Pipe(duplex=False)
        child = fork.Process(target=_child, args=(plan, theirs))
        child.start()
        theirs.close()
        try:
            found = ours.recv()
        except EOFError:
            found = "it died"
        child.join()
        said = f"{plan.loop} {plan.model} {plan.optim} {plan.precision}"
        if isinstance(found, str):
            print(f"{said}: {found}", file=sys.stderr, flush=True)
            continue
        environment = found.pop("environment")
        kept[text] = found
        write(arguments.output, environment, told, kept.values())
        print(f"{said}: {time.monotonic() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
