"""Groups of processes, meshes of ranks, and how DTensor plans on them."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from memcalc.trace.torch_private.names import ask, replaced


def give_collectives_shapes() -> None:
    """Let collectives run on fake tensors: they make what they would receive, and send nothing."""
    importlib.import_module("torch.distributed._tools.fake_collectives")


def fake_store() -> Any:
    """The store of a process group that has no other member."""
    return ask("torch.testing._internal.distributed.fake_pg:FakeStore")()


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
    owner = ask("torch.distributed.tensor._sharding_prop:ShardingPropagator")
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
    owner = ask("torch.distributed.device_mesh:DeviceMesh")
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
    owner = ask("torch.distributed.device_mesh:DeviceMesh")
    with ExitStack() as stack:
        for place, name in ((module, "init_device_mesh"), *((owner, one) for one in _OF_MESHES)):
            stack.enter_context(replaced(place, name, wrap(getattr(place, name))))
        stack.enter_context(replaced(owner, "mesh", property(wrap(owner.mesh.fget))))
        yield
