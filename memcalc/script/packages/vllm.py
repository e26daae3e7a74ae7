"""vLLM inside a script: its engine runs in the script's process, and says what it takes.

A script that only serves is stopped as it asks for a first answer; one that trains goes on.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memcalc.engine.counters import Counters
from memcalc.engine.follow.session import Session
from memcalc.engine.follow.steps import EnoughStepsError
from memcalc.engine.patches import Around, Patches
from memcalc.engine.serving import plugin, start
from memcalc.records.trace import Component

_ONE_PROCESS = "VLLM_ENABLE_V1_MULTIPROCESSING"
_ASKING = ("generate", "chat", "beam_search", "encode", "embed", "classify", "reward", "score")
"""Methods of ``vllm.LLM`` that need an engine that computes."""
_DUMMY = "vLLM's weights are dummies, and FlashInfer compiles nothing"


def install(session: Session, folder: Path) -> None:
    """Patch vLLM to write its memory figures into a folder, and to stop at a first request."""
    patches = session.patches

    def prepare(_: Any) -> None:
        patches.say(_DUMMY)
        folder.mkdir(exist_ok=True)
        for name, value in start.variables(folder, os.environ).items():
            patches.environment(name, value)
        if _ONE_PROCESS not in os.environ:
            patches.environment(_ONE_PROCESS, "0")
        plugin.install(patches)

    def ask_or_stop(original: Any, *args: Any, **kwargs: Any) -> Any:
        if not session.steps.has_optimizer:
            raise EnoughStepsError
        return original(*args, **kwargs)

    patches.when_imported("vllm", prepare)
    for name in _ASKING:
        patches.wrap_later("vllm.entrypoints.llm", f"LLM.{name}", ask_or_stop)
    _name_memory(patches, session.counters)
    _note_sleep(patches, session.counters)


def _name_memory(patches: Patches, counters: Counters) -> None:
    """Label an engine's weights and KV cache in the memory counts."""

    def make_labeller(component: Component, tensors: Callable[[Any], list[Any]]) -> Around:
        def around(original: Any, worker: Any, *args: Any, **kwargs: Any) -> Any:
            found = original(worker, *args, **kwargs)
            counters.name(component, tensors(getattr(worker, "model_runner", None)))
            return found

        return around

    def list_caches(runner: Any) -> list[Any]:
        return list(_flatten(getattr(runner, "kv_caches", None) or ()))

    worker = "vllm.v1.worker.gpu_worker"
    kept = {"initialize_from_config": make_labeller(Component.KV_CACHE, list_caches)}
    kept["load_model"] = make_labeller(Component.WEIGHTS, plugin.list_weights)
    for name, around in kept.items():
        patches.wrap_later(worker, f"Worker.{name}", around)


def _note_sleep(patches: Patches, counters: Counters) -> None:
    """Count memory that a sleeping engine unmaps as off the GPU, until mapped or freed."""

    def unmap(original: Any, handle: Any) -> None:
        original(handle)
        device, size, address = handle[:3]
        # What is freed is unmapped too.
        if address in sys.modules[module].CuMemAllocator.get_instance().pointer_to_data:
            counters.send_away(device, address, size)

    def remap(original: Any, handle: Any) -> None:
        original(handle)
        counters.bring_back(handle[0], handle[2])

    def free(original: Any, allocator: Any, address: int) -> Any:
        handle = original(allocator, address)
        counters.bring_back(handle[0], address)
        return handle

    module = "vllm.device_allocator.cumem"
    patches.wrap_later(module, "unmap_and_release", unmap)
    patches.wrap_later(module, "create_and_map", remap)
    patches.wrap_later(module, "CuMemAllocator._python_free_callback", free)


def _flatten(held: Any) -> Any:
    """Yield the tensors of a KV cache, which lists and dicts may hold."""
    for one in held.values() if isinstance(held, dict) else held:
        if isinstance(one, dict | list | tuple):
            yield from _flatten(one)
        else:
            yield one
