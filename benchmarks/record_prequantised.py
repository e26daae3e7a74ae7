"""Record runs over checkpoints that are quantised already, with PyTorch's CUDA code.

Each run begins with a real checkpoint: made and quantised on the CPU, written by
``save_pretrained``, and read by ``from_pretrained`` alone. Its threads read ahead, in an order that
no two runs have in common; with HF_DEACTIVATE_ASYNC_LOAD=1 there are none. Run it with a Python
whose torch is a CUDA build over the stand-in driver.

    python benchmarks/record_prequantised.py configs/suites/prequantised.toml FILE
"""

import argparse
import functools
import json
import os
import pathlib
import sys
import tempfile
import types

import torch
from msgspec.structs import replace
from record_parallel import OnlyMetered, Patient, write
from record_standin import STEPS, compact, settings

from memcalc.catalog.suite import load
from memcalc.engine import program as build
from memcalc.files.artifact import encode
from memcalc.measure.runs import run as runs
from memcalc.measure.runs.run import Options, measure
from memcalc.workload import loops

IN_TURN = "HF_DEACTIVATE_ASYNC_LOAD"
# transformers and bitsandbytes look for GPUs as they are imported: only in a process of its own.
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def write_checkpoint(config: dict, folder: str) -> None:
    """Make a model of random weights, and write it as somebody publishes it in few bits."""
    import transformers

    auto, settings = transformers.AutoModelForCausalLM, config.pop("quantization_config")
    kept = getattr(torch, config["dtype"])
    made = auto.from_config(transformers.AutoConfig.for_model(**config)).to(kept)
    with tempfile.TemporaryDirectory() as plain:
        made.save_pretrained(plain)
        told = transformers.BitsAndBytesConfig.from_dict(dict(settings))
        made = auto.from_pretrained(
            plain, quantization_config=told, device_map={"": "cpu"}, dtype=kept
        )
    made.save_pretrained(folder)


def read_what_was_copied() -> None:
    """Over the stand-in driver nothing comes back from the device: tell what was brought there.

    bitsandbytes reads a weight's shape and type from a tensor that it has there.
    """
    import bitsandbytes.functional
    from transformers import core_model_loading

    brought: dict[int, torch.Tensor] = {}
    copied = core_model_loading._materialize_copy

    def copy(tensor, device=None, dtype=None):
        placed = copied(tensor, device, dtype)
        brought[placed.data_ptr()] = tensor[...]
        return placed

    def unpack(tensor):
        tensor.cpu()
        return json.loads(bytes(brought[tensor.data_ptr()].numpy()).decode())

    core_model_loading._materialize_copy = copy
    bitsandbytes.functional.unpack_tensor_to_dict = unpack


def record(plan, file: str) -> None:
    import transformers

    transformers.utils.logging.disable_progress_bar()
    auto = transformers.AutoModelForCausalLM
    torch.backends.cudnn.enabled = False
    read_what_was_copied()
    config = json.loads(pathlib.Path(plan.model).read_text())
    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(config, folder)

        def place(program, device):
            dtype = DTYPES[plan.precision.removeprefix("amp-")]
            loaded = auto.from_pretrained(folder, device_map={"": 0}, dtype=dtype)
            return replace(program, model=loaded)

        build.place = place
        runs.loops = types.SimpleNamespace(of=lambda plan: OnlyMetered(loops.of(plan)))
        measured = encode(measure(plan, Options(device="cuda", steps=STEPS), Patient()))
    kept = {**compact(measured), "environment": measured["versions"]}
    pathlib.Path(file).write_text(json.dumps(kept))


def alone(work) -> None:
    """Do it in a process of its own."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:
            print(f"{type(error).__name__}: {error}"[:600], file=sys.stderr)
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("suite", type=pathlib.Path)
    parser.add_argument("output", type=pathlib.Path)
    arguments = parser.parse_args()
    told, found, environment = settings(), [], {}
    told[IN_TURN] = os.environ.get(IN_TURN, "0")
    for plan in load(arguments.suite):
        file = f"{arguments.output}.{os.getpid()}"
        alone(functools.partial(record, plan, file))
        if pathlib.Path(file).exists():
            found.append(json.loads(pathlib.Path(file).read_text()))
            pathlib.Path(file).unlink()
            environment = found[-1].pop("environment", environment)
            print(plan.model, plan.quant, plan.optim, flush=True)
            write(arguments.output, environment, told, found)


if __name__ == "__main__":
    main()
