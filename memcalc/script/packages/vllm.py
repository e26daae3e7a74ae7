"""vLLM inside a script: its engine runs in the script's process, and says what it takes.

A script that only serves is stopped as it asks for a first answer; one that trains goes on.
"""

import os
import sys
from pathlib import Path
from typing import Any

from memcalc.engine.follow.session import Session
from memcalc.engine.follow.steps import EnoughStepsError
from memcalc.engine.serving import plugin, start
from memcalc.records.trace import Component

_ONE_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
_ASKING = ("generate", "chat", "beam_search", "encode", "embed", "classify", "reward", "score")
"""Methods of ``vllm.LLM`` that need an engine that computes."""
_DUMMY = "vLLM's weights are dummies, and FlashInfer compiles nothing"


def install(session: Session, folder: Path) -> None:
    """Make vLLM's processes write their figures into a folder, once it is imported."""
    patches = session.patches

    def prepare(_: Any) -> None:
        patches.say(_DUMMY)
        folder.mkdir(exist_ok=True)
        for name, value in start.variables(folder, os.environ).items():
            patches.environment(name, value)
        if _ONE_PROCESS not in os.environ:
            patches.environment(_ONE_PROCESS, "0")
        plugin.install(patches)

    def ask(original: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.steps.has_optimizer:
            raise EnoughStepsError
        return original(*args, **kwargs)

    def name_cache(original: Any, worker: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(worker, *args, **kwargs)
        held = getattr(getattr(worker, "model_runner", None), "kv_caches", None) or ()
        session.counters.name(Component.KV_CACHE, list(_flat(held)))
        return found

    def name_weights(original: Any, worker: Any, *args: Any, **kwargs: Any) -> Any:
        found = original(worker, *args, **kwargs)
        model: Any = getattr(getattr(worker, "model_runner", None), "model", None)
        if hasattr(model, "parameters"):
            session.counters.name(Component.WEIGHTS, list(model.parameters()))
        return found

    def unmap(original: Any, handle: Any) -> None:
        original(handle)
        device, size, address = handle[:3]
        if address in _mapped():
            session.counters.send_away(device, address, size)

    def map_again(original: Any, handle: Any) -> None:
        original(handle)
        session.counters.bring_back(handle[0], handle[2])

    def free(original: Any, allocator: Any, address: int) -> Any:
        handle = original(allocator, address)
        session.counters.bring_back(handle[0], address)
        return handle

    sleeps, worker = "vllm.device_allocator.cumem", "vllm.v1.worker.gpu_worker"
    patches.wrap_later(sleeps, "unmap_and_release", unmap)
    patches.wrap_later(sleeps, "create_and_map", map_again)
    patches.wrap_later(sleeps, "CuMemAllocator._python_free_callback", free)
    patches.when_imported("vllm", prepare)
    for name in _ASKING:
        patches.wrap_later("vllm.entrypoints.llm", f"LLM.{name}", ask)
    patches.wrap_later(worker, "Worker.initialize_from_config", name_cache)
    patches.wrap_later(worker, "Worker.load_model", name_weights)


def _mapped() -> Any:
    """Return the memory that an engine that may sleep has allocated, by address."""
    return sys.modules["vllm.device_allocator.cumem"].CuMemAllocator.get_instance().pointer_to_data


def _flat(held: Any) -> Any:
    """Yield the tensors of a KV cache, which lists and dicts may hold."""
    for one in held.values() if isinstance(held, dict) else held:
        if isinstance(one, dict | list | tuple):
            yield from _flat(one)
        else:
            yield one
