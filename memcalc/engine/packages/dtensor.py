"""DTensor's planning of operators over lists: tensors that are alike are planned once.

For each tensor of such a list DTensor works out anew how it may be divided, though it knows which
of them are alike: those share one ``OpSchema``. That takes most of the time of a step over a model
of many layers. Nothing of the plan itself is changed. Read in PyTorch 2.13 and 2.14
(torch/distributed/tensor); a release that has other functions there plans as it does.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from memcalc.engine.patch import replaced

_PLACE = "torch.distributed.tensor."


@contextmanager
def alike_planned_once() -> Iterator[None]:
    """Keep what DTensor works out for a tensor, for others of its list that are alike."""
    with ExitStack() as stack:
        for module, name, wrap in (
            ("_ops.single_dim_strategy", "_PreparedSingleDimStrategy", _kept),
            ("_ops.single_dim_strategy", "tree_map_only", _without_numbers),
            ("_ops.utils", "expand_to_full_mesh_op_strategy", _kept),
            ("_sharding_prop", "_propagate_use_strided_shard_flag", _where_strided),
        ):
            try:
                found = importlib.import_module(f"{_PLACE}{module}")
            except ImportError:
                continue
            stack.enter_context(replaced(found, name, wrap))
            propagator = getattr(found, "ShardingPropagator", None)
            if propagator is not None:
                stack.enter_context(
                    replaced(propagator, "_propagate_tensor_meta_non_cached", _of_results)
                )
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
    """The function, which runs an operator to learn its results, where the operator has some."""

    def run(propagator: Any, schema: Any) -> Any:
        return function(propagator, schema) if schema.op._schema.returns else None

    return run


def _without_numbers(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which takes one tensor's part of all arguments, without lists of numbers.

    An optimizer gives a number for each tensor, and all would be walked through for each tensor.
    """

    def run(kind: Any, select: Callable[[Any], Any], tree: Any, **kwargs: Any) -> Any:
        args, named = tree
        numbers = [
            isinstance(one, list | tuple) and all(isinstance(n, int | float) for n in one[:1])
            for one in args
        ]
        walked = [None if skip else one for one, skip in zip(args, numbers, strict=True)]
        walked, named = function(kind, select, (walked, named), **kwargs)
        found = [a if skip else b for a, b, skip in zip(args, walked, numbers, strict=True)]
        return tuple(found), named

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
