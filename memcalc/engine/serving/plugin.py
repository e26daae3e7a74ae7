"""Runs inside each process of vLLM and writes down what vLLM says of its memory.

vLLM calls ``register`` in each of its processes, as one of its general plugins. Weights are dummies
and FlashInfer compiles nothing. Read in vLLM 0.33.0: ``vllm/v1/worker/gpu_worker.py``,
``vllm/v1/engine/core.py``, ``vllm/v1/core/kv_cache_utils.py``; what another release does not have
is left ``None``.
"""

import contextlib
import importlib
import json
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from memcalc.catalog import models
from memcalc.engine.patches import Patches
from memcalc.engine.stub import build
from memcalc.records.engines import EngineFigures, Refused, WorkerFigures

FOLDER = "MEMCALC_SERVING"
"""Variable that names the folder in which the processes of an engine write their figures."""
LENGTH = "MEMCALC_SERVING_LENGTH"
"""Variable with a length of sequences to count, beside the longest."""
WEIGHTS = "MEMCALC_SERVING_WEIGHTS"
"""Variable that leaves weights as the command has them."""
_HOLDS_SHAPES = "gguf"
"""Format whose files tell the types and shapes of weights, which dummies would lack."""
_for_good = Patches()


def register() -> None:
    """Patch this process of vLLM if memcalc started it; vLLM calls this as a plugin."""
    if FOLDER in os.environ:
        install(_for_good)
        parent = multiprocessing.parent_process()
        if parent is not None:
            threading.Thread(target=_exit_with_parent, args=(parent,), daemon=True).start()


def _exit_with_parent(parent: Any) -> None:
    """Wait until the process that started this one has ended, and exit."""
    parent.join()
    os._exit(1)


def install(patches: Patches) -> None:
    """Patch vLLM: dummy weights, no FlashInfer kernels, and files with figures and refusals."""
    core, worker = "vllm.v1.engine.core", "vllm.v1.worker.gpu_worker"
    if not os.environ.get(WEIGHTS):
        arguments = "vllm.engine.arg_utils"
        patches.wrap_later(arguments, "EngineArgs.create_engine_config", _with_dummy_weights)
    patches.when_imported("flashinfer.jit.core", lambda module: _compile_nothing(patches, module))
    runtime = "vllm.distributed.device_communicators.cuda_wrapper"
    patches.wrap_later(runtime, "find_loaded_library", _find_stub)
    # An engine core loads plugins as it is made, so what makes it cannot be wrapped.
    patches.wrap_later(core, "EngineCore._initialize_kv_caches", _initialize_caches)
    patches.wrap_later("vllm.v1.executor.abstract", "Executor.__init__", _record_refusal_of)
    for step in ("init_device", "load_model"):
        patches.wrap_later(worker, f"Worker.{step}", _record_refusal_of)
    patches.wrap_later(worker, "Worker.determine_available_memory", _determine_available_memory)
    patches.wrap_later(worker, "Worker.compile_or_warm_up_model", _warm_up_model)


# ---- what cannot run here


def _with_dummy_weights(original: Any, arguments: Any, *args: Any, **kwargs: Any) -> Any:
    if arguments.load_format != _HOLDS_SHAPES:
        arguments.load_format = "dummy"
        _use_bundled_configs(arguments)
    with _refusals():
        return original(arguments, *args, **kwargs)


def _use_bundled_configs(arguments: Any) -> None:
    """Replace names of bundled models that the hub does not give by folders with their configs."""
    if (folder := _write_config(arguments.model, arguments.revision)) is not None:
        arguments.served_model_name = arguments.served_model_name or arguments.model
        arguments.model = folder
        arguments.skip_tokenizer_init |= arguments.tokenizer is None
    draft = getattr(arguments, "speculative_config", None)
    if isinstance(draft, dict) and isinstance(draft.get("model"), str):
        folder = _write_config(draft["model"], draft.get("revision"))
        arguments.speculative_config = {**draft, "model": folder or draft["model"]}


def _bundled() -> Path:
    """Return the folder with the configs of bundled models."""
    return Path(os.environ[FOLDER], "bundled")


def _write_config(name: str, revision: str | None) -> str | None:
    """Write a bundled model's config to a folder, and return it; None: the hub gives the model."""
    config = None if Path(name).exists() else models.find_shipped_config(name)
    if config is None:
        return None
    try:
        models.config_file(name, revision)
    except models.NotOnHubError:
        folder = _bundled() / name.replace("/", "--")
        folder.mkdir(parents=True, exist_ok=True)
        folder.joinpath("config.json").write_text(json.dumps(config))
        return str(folder)
    return None


def _find_stub(original: Any, name: str) -> Any:
    """Find the stub driver as the CUDA runtime: torchvision brings one that needs a real driver."""
    loaded = os.environ.get("LD_PRELOAD", "").split(":")
    stubs = [path for path in loaded if path.endswith(build.NAME)]
    return stubs[0] if name == "libcudart" and stubs else original(name)


class _Nothing:
    """A compiled module of which every function does nothing.

    FlashInfer's Python allocates results and workspaces itself and hands them to these functions.
    """

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *args, **kwargs: None


def _compile_nothing(patches: Patches, module: ModuleType) -> None:
    """Patch FlashInfer to return modules that do nothing, in place of compiling."""
    for kind in list(vars(module).values()):
        if isinstance(kind, type) and "build_and_load" in vars(kind):
            patches.set(kind, "build_and_load", lambda spec: _Nothing())


# ---- what is written down


def write(name: str, figures: msgspec.Struct) -> None:
    """Write figures to a JSON file in the engine's folder, atomically."""
    path = Path(os.environ[FOLDER], f"{name}.json")
    made = path.with_suffix(".part")
    made.write_bytes(msgspec.json.encode(figures))
    made.replace(path)


@contextlib.contextmanager
def _refusals() -> Iterator[None]:
    """Write an error that is raised in this context to a file, and raise it further."""
    try:
        yield
    except Exception as error:
        text = str(error) or type(error).__name__
        write(f"refused-{time.monotonic_ns():020}", Refused(kind=type(error).__name__, text=text))
        raise


def _record_refusal_of(original: Any, *args: Any, **kwargs: Any) -> Any:
    with _refusals():
        return original(*args, **kwargs)


def _determine_available_memory(original: Any, worker: Any, *args: Any, **kwargs: Any) -> Any:
    with _refusals():
        available = original(worker, *args, **kwargs)
    write_worker(worker, available=int(available))
    return available


def write_worker(worker: Any, available: int) -> None:
    """Write a worker's figures: how it divides the memory of its GPU.

    Releases differ in what else they count as peak activations, so those are what is missing of
    the sum by which all of them divide.
    """
    runner = getattr(worker, "model_runner", None)
    graphs = _to_int(worker, "cudagraph_memory_estimate")
    applied = graphs if graphs is not None and _takes_graphs_off() else 0
    tensors = list_weights(runner)
    weights, requested = _to_int(runner, "model_memory_usage"), _to_int(worker, "requested_memory")
    consumed, activations = _read_consumed_bytes(worker, weights), None
    if requested is not None and consumed is not None:
        activations = requested - consumed - applied - available
    figures = WorkerFigures(
        rank=_to_int(worker, "rank") or 0,
        weights=weights,
        parameters=sum(one.numel() for one in tensors) if tensors else None,
        tensors=len(tensors) if tensors else None,
        consumed=consumed,
        activations=activations,
        graphs=applied if graphs is not None else None,
        requested=requested,
        available=available,
    )
    write(f"worker-{os.getpid()}", figures)


def _read_consumed_bytes(worker: Any, weights: int | None) -> int | None:
    """Return the bytes of a worker's weights and memory outside PyTorch, or None."""
    found = _to_int(worker, "total_consumed")
    outside = _to_int(worker, "non_torch_memory")
    if found is None and outside is not None and weights is not None:
        return weights + outside
    return found


def _warm_up_model(original: Any, worker: Any, *args: Any, **kwargs: Any) -> Any:
    """Replace ``compile_or_warm_up_model``: also add the bytes of CUDA graphs to the figures."""
    runner, captured = getattr(worker, "model_runner", None), 0

    def capture(original: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal captured
        found = original(*args, **kwargs)
        captured += found if isinstance(found, int) else 0
        return found

    with Patches() as patches, _refusals():
        if hasattr(runner, "capture_model"):
            patches.wrap(runner, "capture_model", capture)
        found = original(worker, *args, **kwargs)
    path = Path(os.environ[FOLDER], f"worker-{os.getpid()}.json")
    if path.exists():
        kept = msgspec.json.decode(path.read_bytes(), type=WorkerFigures)
        write(path.stem, msgspec.structs.replace(kept, captured=captured))
    return found


def _initialize_caches(original: Any, core: Any, *args: Any, **kwargs: Any) -> Any:
    with _refusals():
        found = original(core, *args, **kwargs)
    # Earlier releases return numbers of blocks before it.
    several = found if isinstance(found, tuple) else (found,)
    planned = next((one for one in several if hasattr(one, "kv_cache_groups")), None)
    write(f"engine-{os.getpid()}", engine_figures(core.vllm_config, planned))
    return found


def engine_figures(config: Any, planned: Any) -> EngineFigures:
    """Return the settings that an engine chose, and its own count of sequences.

    ``planned`` is vLLM's plan of the KV cache, or None in releases without one.
    """
    vllm = importlib.import_module("vllm")
    cache, model = config.cache_config, config.model_config
    scheduler, parallel = config.scheduler_config, config.parallel_config
    length = int(os.environ.get(LENGTH) or 0) or None
    longest = _to_int(model, "max_model_len")
    concurrency = _concurrency(config, planned)
    tokens = _to_int(cache, "kv_cache_size_tokens")
    if tokens is None and concurrency is not None and longest is not None:
        tokens = int(concurrency * longest)
    return EngineFigures(
        version=vllm.__version__,
        architecture=_architecture(model),
        quantization=getattr(model, "quantization", None),
        share=getattr(cache, "gpu_memory_utilization", None),
        world=_to_int(parallel, "world_size") or 1,
        replicas=_to_int(parallel, "data_parallel_size") or 1,
        blocks=_to_int(planned, "num_blocks") or _to_int(cache, "num_gpu_blocks"),
        block=_to_int(cache, "block_size"),
        cache=_size(planned),
        tokens=tokens,
        longest=longest,
        concurrency=concurrency,
        length=length,
        concurrency_at_length=_concurrency(config, planned, length) if length else None,
        sequences=_to_int(scheduler, "max_num_seqs"),
        batched_tokens=_to_int(scheduler, "max_num_batched_tokens"),
        bundled=tuple(one.name.replace("--", "/") for one in _bundled().glob("*")),
    )


def _concurrency(config: Any, planned: Any, length: int | None = None) -> float | None:
    """Return how many sequences the KV cache holds, by vLLM's count; no length: the longest.

    Returns:
        ``None``: there is no such cache, or this release counts otherwise.
    """
    try:
        module = importlib.import_module("vllm.v1.core.kv_cache_utils")
        count = module.get_max_concurrency_for_kv_cache_config
    except (ImportError, AttributeError):
        return None
    if planned is None or not getattr(planned, "kv_cache_groups", None):
        return None
    with Patches() as patches:
        if length is not None:
            patches.set(config.model_config, "max_model_len", length)
        return float(count(config, planned))


def _size(planned: Any) -> int | None:
    """Return the bytes of the KV cache on one GPU, by vLLM's plan of it.

    Older releases allocate each tensor apart. Newer ones allocate once, and each tensor has a place
    in that allocation and its size.
    """
    tensors = getattr(planned, "kv_cache_tensors", None) or ()
    sizes = [int(one.size) for one in tensors if not getattr(one, "host_resident", False)]
    if not sizes:
        return None
    return max(sizes) if all(hasattr(one, "offset") for one in tensors) else sum(sizes)


def _architecture(model: Any) -> str:
    named = getattr(model, "architectures", None) or getattr(
        getattr(model, "hf_config", None), "architectures", None
    )
    return str(named[0]) if named else ""


def _takes_graphs_off() -> bool:
    """Return True if this release takes its estimate of CUDA graphs off the KV cache."""
    settings = importlib.import_module("vllm.envs")
    return bool(getattr(settings, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", False))


def list_weights(runner: Any) -> list[Any]:
    """Return the tensors of a runner's model, if it is loaded."""
    model: Any = getattr(runner, "model", None)
    return list(model.parameters()) if hasattr(model, "parameters") else []


def _to_int(owner: Any, name: str) -> int | None:
    """Return an attribute as an integer, or None if it is no number."""
    found = getattr(owner, name, None)
    return int(found) if isinstance(found, int | float) else None
