"""DTensor's planning of operators over lists: tensors that are alike are planned once.

For each tensor of such a list DTensor works out anew how it may be divided, though it knows which
of them are alike: those share one ``OpSchema``; and it runs on them what has no results, to learn
the sizes of those. Nothing of the plan itself is changed. Read in
PyTorch 2.13 (torch/distributed/tensor); one that has other functions there plans as it does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from memcalc.trace.torch_private.names import replaced

_PLACE = "torch.distributed.tensor."
_RUNS = "_propagate_tensor_meta_non_cached"


@contextmanager
def alike_planned_once() -> Iterator[None]:
    """Keep what DTensor works out for a tensor, for others of its list that are alike."""
    try:
        strategies = importlib.import_module(f"{_PLACE}_ops.single_dim_strategy")
    except ImportError:
        yield
        return
    propagation = importlib.import_module(f"{_PLACE}_sharding_prop")
    utilities = importlib.import_module(f"{_PLACE}_ops.utils")
    with ExitStack() as stack:
        for module, name, wrap in (
            (strategies, "_PreparedSingleDimStrategy", _kept),
            (utilities, "expand_to_full_mesh_op_strategy", _kept),
            (propagation, "_propagate_use_strided_shard_flag", _where_strided),
            (propagation.ShardingPropagator, _RUNS, _of_results),
        ):
            if hasattr(module, name):
                stack.enter_context(replaced(module, name, wrap(getattr(module, name))))
        yield


def _kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, called once for the very same arguments: no equal ones, as those may change."""
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def run(*args: Any, **kwargs: Any) -> Any:
        key = (*map(id, args), *kwargs, *map(id, kwargs.values()))
        if key not in known:
            # What is kept here keeps its id.
            known[key] = (function(*args, **kwargs), args, kwargs)
        return known[key][0]

    return run


def _of_results(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which runs an operator to see its results, where the operator has some."""

    def run(propagator: Any, schema: Any) -> Any:
        return function(propagator, schema) if schema.op._schema.returns else None

    return run


def _where_strided(function: Callable[..., None]) -> Callable[..., None]:
    """The function, which looks through a whole list for each tensor, only where that matters."""
    last: list[Any] = [None, False]

    def run(strategy: Any, schema: Any) -> None:
        if last[0] is not schema:
            placements = (one for spec in schema.args_spec for one in spec.placements)
            last[:] = schema, any(type(one).__name__ == "_StridedShard" for one in placements)
        if last[1]:
            function(strategy, schema)

    return run
