"""Every private name of PyTorch and transformers that tracing relies on, asked for once.

Read in PyTorch 2.11.0 and 2.13.0 and in transformers 5.23.0. A name that is gone ends in an
``EstimateError`` as this module is imported; one that is still there and means something else is
found by ``memcalc.trace.self_check``.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pkgutil
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FrameType
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._prims_common import suggest_memory_format
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._sympy.printers import PythonPrinter

from memcalc.errors import EstimateError
from memcalc.version import NEWEST_TORCH

__all__ = [
    "ConstantSource",
    "DataDependentOutputException",
    "DimDynamic",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "PythonPrinter",
    "ShapeEnv",
    "TorchDispatchMode",
    "suggest_memory_format",
]


def _ask(path: str) -> Any:
    """Find a private object by its path, such as ``torch._C:_current_autograd_node``.

    Raises:
        EstimateError: this PyTorch has no such thing.
    """
    try:
        return pkgutil.resolve_name(path)
    except (ImportError, AttributeError):
        raise EstimateError(
            f"PyTorch {torch.__version__} has no {path.replace(':', '.')}, which a simulated run "
            f"needs: install PyTorch {'.'.join(map(str, NEWEST_TORCH))}, or use --method analytic."
        ) from None


_storage_users: Callable[[int], int] = _ask("torch._C:_storage_Use_Count")
_tensor_users: Callable[[torch.Tensor], int] = _ask("torch:Tensor._use_count")
_next_sequence_number: Callable[[], int] = _ask("torch._C:_autograd._get_sequence_nr")
_key_set = _ask("torch._C:DispatchKeySet")
_keys = _ask("torch._C:DispatchKey")
_exclude = _ask("torch._C:_ExcludeDispatchKeyGuard")
_registered = _ask("torch._C:_dispatch_get_registrations_for_dispatch_key")
_set_up_device = _ask("torch.utils.backend_registration:_setup_privateuseone_for_python_backend")
DeviceGuard: type = _ask("torch._C._acc:DeviceGuard")
"""What the guard of a device that Python supplies is made from."""
PRIVATE_DEVICE = _ask("torch._C._autograd:DeviceType.PrivateUse1")
_foreach_types: list[type] = _ask("torch.optim.optimizer:_foreach_supported_types")

has_kernel: Callable[[str, str], bool] = _ask("torch._C:_dispatch_has_kernel_for_dispatch_key")
"""Does an operator, such as ``aten::linear``, have a kernel of its own under a dispatch key?"""
current_node: Callable[[], Any] = _ask("torch._C:_current_autograd_node")
"""The node of autograd's graph that backward is at, or ``None``."""
current_backward: Callable[[], int] = _ask("torch._C:_current_graph_task_id")
"""A number for each call of backward, the present one's."""
NO_BACKWARD = -1
"""What ``current_backward`` says outside of all."""
without_modes: Callable[[], AbstractContextManager[Any]] = _disable_current_modes
"""A context in which no dispatch mode sees what runs."""
below_autograd: Callable[[], AbstractContextManager[Any]] = _ask(
    "torch._C:_AutoDispatchBelowAutograd"
)
"""A context in which operators run without a record for backward."""
without_dispatch: Callable[[], AbstractContextManager[Any]] = _ask("torch._C:_DisableTorchDispatch")
"""The same for real tensors only, and cheap: fake ones are no tensors in it."""


def installed_version() -> tuple[int, int]:
    """Major and minor of the PyTorch that runs here."""
    major, minor = torch.__version__.split(".")[:2]
    return int(major), int(minor)


def storage_key(tensor: torch.Tensor) -> int:
    """What names a tensor's storage as long as that lives; of a DTensor, its local part's."""
    return named(storage_of(tensor))


def storage_of(tensor: torch.Tensor) -> torch.UntypedStorage:
    """Where a tensor's elements lie; of a DTensor, those of its local part."""
    part = tensor if type(tensor) is FakeTensor else local_part(tensor)
    return part.untyped_storage()


def named(storage: torch.UntypedStorage) -> int:
    """What names a storage as long as it lives."""
    key: int = storage._cdata
    return key


def is_owned_once(tensor: torch.Tensor) -> bool:
    """One tensor holds the storage, and the Python view of it that this makes."""
    return _storage_users(tensor.untyped_storage()._cdata) == 2


_mode_of_kind: Callable[[Any], Any] = _ask("torch._C:_get_dispatch_mode")
_FAKE = _ask("torch._C:_TorchDispatchModeKey.FAKE")


def mode_in_use() -> FakeTensorMode:
    """The fake mode that whatever runs now runs in."""
    mode: FakeTensorMode = _mode_of_kind(_FAKE)
    return mode


_HELD_BY_ENGINE = 4
"""Users of a gradient that the engine alone holds, as a dispatch mode sees it where it is summed:
the engine, its call, the call's stack and the Python object (2.13)."""


def is_held_by_engine_alone(tensor: torch.Tensor) -> bool:
    """Nobody else, such as a variable of the program or another node's input, has this gradient."""
    return _tensor_users(tensor) <= _HELD_BY_ENGINE


def next_node_number() -> int:
    """The number that the next node of this thread's autograd graph gets."""
    return _next_sequence_number()


def node_number(node: Any) -> int:
    """The number of a node of autograd's graph: of the forward that made it."""
    number: int = node._sequence_nr()
    return number


_WRAPPERS = (
    *("torch/_compile.py", "torch/_dynamo/eval_frame.py"),
    *("memcalc/trace/recorder.py", "memcalc/script/recorder.py"),
    "memcalc/script/driver/known.py",
)
"""Files whose functions stand between C++ and whoever asks for an operator."""
_ENGINE = "_engine_run_backward"
"""What calls the engine (torch/autograd/graph.py), in the thread where it runs CPU tensors."""


def called_from_engine(frame: FrameType | None) -> bool:
    """Was this frame's dispatch mode called by the autograd engine, not by Python code?"""
    while frame is not None:
        mode = frame.f_code.co_name == "__torch_dispatch__"
        if not mode and not frame.f_code.co_filename.endswith(_WRAPPERS):
            return frame.f_code.co_name == _ENGINE
        frame = frame.f_back
    return True


@contextmanager
def without_key(name: str) -> Iterator[None]:
    """Calls inside pass a dispatch key by."""
    with _exclude(_key_set(getattr(_keys, name))):
        yield


def autocast_names() -> frozenset[str]:
    """Operators that CUDA's autocast does something to, such as ``conv2d`` or ``sum.dim_IntList``.

    They are registered in builds without CUDA as well (aten/src/ATen/autocast_mode.cpp), but for
    ``_cudnn_rnn``.
    """
    return frozenset(name.removeprefix("aten::") for name in _registered("AutocastCUDA"))


def register_device(name: str, module: Any, guard: Any) -> None:
    """Give PyTorch's ``PrivateUse1`` device a name, the module behind ``torch.<name>``, a guard."""
    global _registered_device
    _set_up_device(name, backend_module=module, device_guard=guard)
    _registered_device = name


def wrap_backward(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace what every backward goes through by what ``wrap`` makes of it."""
    wrapped = wrap(_ask(f"torch.autograd.graph:{_ENGINE}"))
    for module in ("torch.autograd", "torch.autograd.graph"):
        setattr(importlib.import_module(module), _ENGINE, wrapped)


def wrap_module_apply(
    wrap: Callable[[Callable[..., torch.nn.Module]], Callable[..., torch.nn.Module]],
) -> None:
    """Replace what ``nn.Module.to`` and its like go through by what ``wrap`` makes of it."""
    original = _ask("torch.nn:Module._apply")
    torch.nn.Module._apply = wrap(original)  # type: ignore[method-assign]


def script_with(context: Callable[[], AbstractContextManager[Any]]) -> None:
    """Let TorchScript compile inside a context, for the life of the process.

    What it compiles looks names up in its caller's frame, which is one further up then.
    """
    script = importlib.import_module("torch.jit._script")
    compile_: Callable[..., Any] = _ask("torch.jit._script:_script_impl")

    def run(*args: Any, _frames_up: int = 0, **kwargs: Any) -> Any:
        with context():
            return compile_(*args, _frames_up=_frames_up + 1, **kwargs)

    setattr(script, "_script_impl", run)  # noqa: B010


def take_fake_tensors_for_real() -> None:
    """Let optimizers and clipping choose foreach for fake tensors as for real ones.

    They choose by exact tensor type and device.
    """
    clip_grad = importlib.import_module("torch.nn.utils.clip_grad")
    _ask("torch.nn.utils.clip_grad:_has_foreach_support")
    _foreach_types.append(FakeTensor)
    setattr(clip_grad, "_has_foreach_support", lambda _, device: device.type != "cpu")  # noqa: B010


def for_every_device(func: OpOverload) -> Callable[..., Any] | None:
    """The kernel that an operator has for all devices alike; ``None``: it has none.

    Called so, what it calls in its turn is seen by modes; through the operator it is not.
    """
    key = torch._C.DispatchKey.CompositeExplicitAutograd
    if not func.has_kernel_for_dispatch_key(key):
        return None
    return functools.partial(func._op_dk, key)


def foreach_takes(kind: type) -> None:
    """Let optimizers choose foreach for tensors of this type too."""
    _foreach_types.append(kind)


def let_transformers_run_eagerly() -> None:
    """Make masks as an eager run makes them, not as one that is traced into a graph.

    transformers (utils/import_utils.py, ``is_tracing``) takes a fake tensor for a sign of that.
    """
    from transformers.utils import import_utils

    import_utils.is_fake_tensor = lambda _: False


def let_compiled_run_eagerly() -> None:
    """What ``torch.compile`` has wrapped runs as it was, for the life of the process."""
    setattr(importlib.import_module("torch._dynamo.config"), "disable", True)  # noqa: B010


def is_compiled(module: torch.nn.Module) -> bool:
    """``torch.compile`` has wrapped it, or ``Module.compile`` did."""
    return hasattr(module, "_orig_mod") or module._compiled_call_impl is not None


def transformers_runs_eagerly(tensor: torch.Tensor) -> bool:
    """``let_transformers_run_eagerly`` has done what it should, or there is no transformers."""
    loaded = sys.modules.get("transformers.utils.import_utils")
    is_tracing = getattr(loaded, "is_tracing", None)
    return loaded is None or (is_tracing is not None and not is_tracing(tensor))


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Put a value in the place of an attribute while the context lasts."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


HigherOrderOperator: Any = _ask("torch._ops:HigherOrderOperator")
"""Operators that are given functions: flex attention, ``torch.cond``."""


def eager_code(operator: Any) -> Callable[..., Any] | None:
    """What runs such an operator where nothing is compiled; ``None``: it has no such code."""
    kernel: Callable[..., Any] | None = operator.py_kernels.get(
        torch._C.DispatchKey.CompositeExplicitAutograd
    )
    return kernel


def give_collectives_shapes() -> None:
    """Let collectives run on fake tensors: they make what they would receive, and send nothing."""
    importlib.import_module("torch.distributed._tools.fake_collectives")


def fake_store() -> Any:
    """The store of a process group that has no other member."""
    return _ask("torch.testing._internal.distributed.fake_pg:FakeStore")()


transformed: Callable[[], Any] = _ask("torch._C._functorch:peek_interpreter_stack")
"""The transform of ``torch.func`` at work, if one is."""
data_of: Any = _ask("torch._C:TensorBase.data")
"""``Tensor.data`` as PyTorch has it."""
make_subclass: Callable[..., torch.Tensor] = _ask("torch._C:TensorBase._make_subclass")
"""A tensor of a subclass over the memory of another."""
OpOverload: Any = _ask("torch._ops:OpOverload")
"""An operator with one of its signatures."""
pointers_are_null: Callable[[torch.Tensor], None] = _ask(
    "torch._C:_set_warn_deprecated_on_mutable_data_ptr"
)
"""Whoever asks for the memory of this tensor is told of none, as of any fake tensor."""
dispatch_keys: Callable[[torch.Tensor], Any] = _ask("torch._C:_dispatch_keys")
"""Device, layout, and whether it is a conjugate or negative, as PyTorch dispatches by them."""
swap_contents: Callable[[torch.Tensor, torch.Tensor], None] = _ask("torch._C:_swap_tensor_impl")
"""Exchange what two tensors are, and leave the Python objects where they are."""


_rule: Any = _ask("torch._library.simple_registry:find_torch_dispatch_rule")


@contextmanager
def no_rules() -> Iterator[None]:
    """Dispatch modes and fake tensors have no rules by operator, and are not asked for any.

    C++ keeps the function that it asks before every call (torch/csrc/utils/python_arg_parser.cpp,
    ``maybe_get_registered_torch_dispatch_rule``), so that function itself is given other code.
    """

    def find_torch_dispatch_rule(op: Any, torch_dispatch_class: type) -> None:
        return None

    before = _rule.__code__
    _rule.__code__ = find_torch_dispatch_rule.__code__
    try:
        yield
    finally:
        _rule.__code__ = before


@contextmanager
def subclasses_made_by(make: Callable[..., Any], data: property) -> Iterator[None]:
    """Subclasses of tensors are made, and given other contents, by functions of ours."""
    made = replaced(torch.Tensor, "_make_subclass", staticmethod(make))
    with made, replaced(torch.Tensor, "data", data):
        yield


@contextmanager
def raw_stream() -> Iterator[None]:
    """The function is there that a build with CUDA gives a stream's number by."""
    name = "_cuda_getCurrentRawStream"
    missing = not hasattr(torch._C, name)
    if missing:
        setattr(torch._C, name, lambda index: 0)
    try:
        yield
    finally:
        if missing:
            delattr(torch._C, name)


def local_part(tensor: torch.Tensor) -> torch.Tensor:
    """What a DTensor holds on this rank, without a record in autograd; others as they are."""
    held: torch.Tensor = getattr(tensor, "_local_tensor", tensor)
    return held


_PLANNERS = (
    "_propagate_tensor_meta",
    "_propagate_tensor_meta_non_cached",
    "propagate_op_sharding_non_cached",
)
"""Methods of ``ShardingPropagator`` (torch/distributed/tensor/_sharding_prop.py) that run operators
on tensors of the global size, to learn shapes."""


@contextmanager
def planning_wrapped(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """DTensor plans through what ``wrap`` makes of its own methods."""
    owner = _ask("torch.distributed.tensor._sharding_prop:ShardingPropagator")
    with ExitStack() as stack:
        for name in _PLANNERS:
            if hasattr(owner, name):
                stack.enter_context(replaced(owner, name, wrap(getattr(owner, name))))
        yield


_runs = itertools.count(1)


@contextmanager
def meshes_of_one_run() -> Iterator[None]:
    """No mesh of another run is equal to one of this run.

    What DTensor plans for a mesh it keeps for all that are equal to it, in each thread of autograd
    apart; a plan names the mesh's groups of processes, which end with their run.
    """
    owner = _ask("torch.distributed.device_mesh:DeviceMesh")
    make, run = owner.__init__, -next(_runs)

    def made(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        # One of the things by which meshes are compared; a thread's number is positive.
        self._thread_id = run

    with replaced(owner, "__init__", made):
        yield


_OF_MESHES = ("__init__", "__getitem__")
"""Methods of ``DeviceMesh`` (torch/distributed/device_mesh.py) that work with numbers of ranks."""


@contextmanager
def meshes_wrapped(wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Iterator[None]:
    """Meshes of ranks are made by what ``wrap`` makes of their own methods."""
    module = importlib.import_module("torch.distributed.device_mesh")
    owner = _ask("torch.distributed.device_mesh:DeviceMesh")
    with ExitStack() as stack:
        for place, name in ((module, "init_device_mesh"), *((owner, one) for one in _OF_MESHES)):
            stack.enter_context(replaced(place, name, wrap(getattr(place, name))))
        stack.enter_context(replaced(owner, "mesh", property(wrap(owner.mesh.fget))))
        yield


_registered_device = ""
_data: Any = _ask("torch._C:TensorBase.data")
_as_meta = _ask("torch._subclasses.fake_tensor:in_kernel_invocation_manager")


def _set_data(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """``tensor.data = new``, also from the simulated device to the host and back.

    PyTorch lets tensors of its own devices take each other's data, and not those of others
    (c10/core/TensorImpl.h, ``has_compatible_shallow_copy_type``, 2.13): the new data comes under
    the old device's keys, and the fake tensor is told where it is.
    """
    try:
        _data.__set__(tensor, new)
    except RuntimeError:
        if not isinstance(tensor, FakeTensor):
            raise
        fake = new if isinstance(new, FakeTensor) else tensor.fake_mode.from_tensor(new)
        with torch.no_grad(), _as_meta(fake.fake_mode):
            plain = fake.detach()
        keys = "cpu" if fake.device.type != "cpu" else _registered_device
        _data.__set__(tensor, FakeTensor(fake.fake_mode, plain, torch.device(keys)))
    if isinstance(tensor, FakeTensor):
        tensor.fake_device = getattr(new, "fake_device", new.device)


def buckets_rebuilt_by(
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> AbstractContextManager[None]:
    """DDP makes its buckets anew by what ``wrap`` makes of its reducer's method."""
    owner = _ask("torch._C._distributed_c10d:Reducer")
    return replaced(owner, "_rebuild_buckets", wrap(owner._rebuild_buckets))


def ddp_asks_no_timer() -> AbstractContextManager[None]:
    """DDP's logger would ask a timer of the device, which a build without CUDA does not have."""
    owner = _ask("torch._C._distributed_c10d:Logger")
    return replaced(owner, "set_runtime_stats_and_log", lambda logger: None)


@contextmanager
def ranks_trusted(record_stream: Callable[..., None]) -> Iterator[None]:
    """DDP takes it that ranks agree, and FSDP1 records streams by this function.

    DDP compares shapes by values that are read back (torch/nn/parallel/distributed.py); FSDP1
    calls ``record_stream`` past all modes (torch/distributed/fsdp/_common_utils.py), and knows
    storages by their address, which fake ones do not have (_flat_param.py). Pinned host memory is
    host memory.
    """

    def compared(group: Any, parameters: list[torch.Tensor], logger: Any = None) -> None:
        # What torch/csrc/distributed/c10d/reducer.cpp (verify_params_across_processes, 2.13) makes
        # on the device: how many parameters each rank has, then their sizes and strides.
        like = parameters[0]

        def numbers(count: int) -> torch.Tensor:
            return torch.empty(count, dtype=torch.int64, device=like.device)

        counts = [numbers(1) for _ in range(1 + group.size())]
        numbers(group.size())
        numbers(sum(2 * parameter.dim() for parameter in parameters))
        del counts

    with ExitStack() as stack:
        ddp = importlib.import_module("torch.nn.parallel.distributed")
        stack.enter_context(replaced(ddp, "_verify_param_shape_across_processes", compared))
        for name in ("_common_utils", "_flat_param", "_runtime_utils"):
            module = importlib.import_module(f"torch.distributed.fsdp.{name}")
            stack.enter_context(replaced(module, "_no_dispatch_record_stream", record_stream))
        flat = importlib.import_module("torch.distributed.fsdp._flat_param")
        for owner, name, value in (
            (flat, "_data_ptr_allocated", lambda tensor: tensor.untyped_storage().nbytes() > 0),
            (flat, "_same_storage", lambda one, two: storage_key(one) == storage_key(two)),
            (torch.Tensor, "data", property(lambda tensor: _data.__get__(tensor), _set_data)),
            (torch.Tensor, "pin_memory", lambda tensor, device=None: tensor),
            (torch.Tensor, "is_pinned", lambda tensor, device=None: tensor.device.type == "cpu"),
        ):
            stack.enter_context(replaced(owner, name, value))
        runtime = importlib.import_module("torch.distributed.fsdp._runtime_utils")
        hook = _on_stream_of_views(runtime._post_backward_hook)
        stack.enter_context(replaced(runtime, "_post_backward_hook", hook))
        yield


@contextmanager
def shards_padded_once() -> Iterator[None]:
    """FSDP2 knows a shard that it has padded by its address, and a fake one's by its storage.

    Else it would pad uneven shards again in the first forward, and free the first ones
    (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, ``reset_sharded_param``, 2.13).
    """
    owner = _ask("torch.distributed.fsdp._fully_shard._fsdp_param:FSDPParam")
    reset = owner.reset_sharded_param

    def same(shard: Any) -> bool:
        place = shard._module_info
        parameter = getattr(place.module, place.param_name)
        local, kept = parameter._local_tensor, shard._sharded_param_data
        if parameter is not shard.sharded_param or not isinstance(kept, FakeTensor):
            return False
        held = local.device.type != "meta" and kept.untyped_storage().nbytes() > 0
        return held and storage_key(local) == storage_key(kept)

    def once(shard: Any) -> None:
        if same(shard):
            shard._sharding_spec = shard.sharded_param._spec
        else:
            reset(shard)

    with replaced(owner, "reset_sharded_param", once):
        yield


def _on_stream_of_views(hook: Callable[..., None]) -> Callable[..., None]:
    """A hook of FSDP1 that runs where CUDA's engine runs it: on the stream that made its node.

    The node that accumulates a flat parameter's gradient is made with the first views into it, on
    the stream that unshards, and the engine switches to a node's stream for its hooks too
    (torch/csrc/autograd/engine.cpp, ``evaluate_function``).
    """

    def run(state: Any, *args: Any) -> None:
        with state._device_handle.stream(state._unshard_stream):
            hook(state, *args)

    return run


def on_cpu_of_bitsandbytes() -> tuple[Callable[..., None], Callable[..., None]]:
    """Bitsandbytes' updates on the CPU, of 32-bit and of 8-bit states (read in 0.50.2)."""
    path = "bitsandbytes.backends.cpu.ops"
    try:
        return (
            pkgutil.resolve_name(f"{path}:_optimizer_update_32bit_cpu"),
            pkgutil.resolve_name(f"{path}:_optimizer_update_8bit_blockwise_cpu"),
        )
    except (ImportError, AttributeError):
        raise EstimateError(
            "This bitsandbytes has another update on the CPU than 0.50.2, which was read: "
            "install that one, or leave the CPU out."
        ) from None
