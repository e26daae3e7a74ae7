"""Run a training program and print what it holds on the GPU at its end, by PyTorch's own counts.

    memcalc simulate --gpu a10g --steps 0 -- python benchmarks/strangers/_count.py PROGRAM

What memcalc says of the same run has to agree: it is told nothing of this count. The last line is
JSON, in bytes: the allocator's peaks, and the unique storages of all modules and optimizers that
are still alive. An optimizer that is not one of PyTorch's classes is not counted.
"""

import gc
import json
import runpy
import sys

import torch


def storages(tensors) -> int:
    """Bytes of the storages of tensors on the GPU, each once."""
    found = {}
    for one in tensors:
        if isinstance(one, torch.Tensor) and one.is_cuda and one.layout == torch.strided:
            storage = one.untyped_storage()
            found[storage.data_ptr()] = storage.nbytes()
    return sum(found.values())


def main() -> None:
    program = sys.argv.pop(1)
    sys.argv[0] = program
    kept = runpy.run_path(program, run_name="__main__")
    alive = gc.get_objects()
    modules = [one for one in alive if issubclass(type(one), torch.nn.Module)]
    optimizers = [one for one in alive if issubclass(type(one), torch.optim.Optimizer)]
    weights = [tensor for one in modules for tensor in (*one.parameters(), *one.buffers())]
    states = [v for one in optimizers for state in one.state.values() for v in state.values()]
    counted = {
        "allocated": torch.cuda.max_memory_allocated(),
        "reserved": torch.cuda.max_memory_reserved(),
        "weights": storages(weights),
    }
    if optimizers:
        counted["optimizer_state"] = storages(states)
    del kept
    print(json.dumps(counted))


if __name__ == "__main__":
    main()
