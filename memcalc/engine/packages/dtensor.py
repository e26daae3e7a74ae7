"""DTensor's planning of operators over lists: tensors that are alike are planned once.

For each tensor of such a list DTensor works out anew how it may be divided, though it knows which
of them are alike: those share one ``OpSchema``. That takes most of the time of a step over a model
of many layers. Nothing of the plan itself is changed. Read in PyTorch 2.13 and 2.14
(torch/distributed/tensor); a release that has other functions there plans as it does.
"""

import pkgutil
from typing import Any

from memcalc.engine.patches import Around, Patches

_PLACE = "torch.distributed.tensor."


def plan_alike_once(patches: Patches) -> None:
    """Keep what DTensor works out for a tensor, for others of its list that are alike."""
    for place, name, around in (
        ("_ops.single_dim_strategy", "_PreparedSingleDimStrategy", _kept()),
        ("_ops.single_dim_strategy", "tree_map_only", _without_numbers),
        ("_ops.utils", "expand_to_full_mesh_op_strategy", _kept()),
        ("_sharding_prop", "_propagate_use_strided_shard_flag", _where_strided()),
        ("_sharding_prop:ShardingPropagator", "_propagate_tensor_meta_non_cached", _of_results),
    ):
        try:
            owner = pkgutil.resolve_name(_PLACE + place)
        except (ImportError, AttributeError):
            continue
        if hasattr(owner, name):
            patches.wrap(owner, name, around)


def _kept() -> Around:
    """Calls a function once for the very same arguments: no equal ones, as those may change."""
    known: dict[tuple[Any, ...], tuple[Any, ...]] = {}

    def call(original: Any, *args: Any, **kwargs: Any) -> Any:
        key = (*map(id, args), *kwargs, *map(id, kwargs.values()))
        if key not in known:
            # What is kept here keeps its id.
            known[key] = (original(*args, **kwargs), args, kwargs)
        return known[key][0]

    return call


def _of_results(original: Any, propagator: Any, schema: Any) -> Any:
    """Runs an operator to learn its results, where the operator has some."""
    return original(propagator, schema) if schema.op._schema.returns else None


def _without_numbers(original: Any, kind: Any, select: Any, tree: Any, **kwargs: Any) -> Any:
    """Takes one tensor's part of all arguments, without lists of numbers.

    An optimizer gives a number for each tensor, and all would be walked through for each tensor.
    """
    args, named = tree
    numbers = [
        isinstance(one, list | tuple) and all(isinstance(n, int | float) for n in one[:1])
        for one in args
    ]
    walked = [None if skip else one for one, skip in zip(args, numbers, strict=True)]
    walked, named = original(kind, select, (walked, named), **kwargs)
    found = [a if skip else b for a, b, skip in zip(args, walked, numbers, strict=True)]
    return tuple(found), named


def _where_strided() -> Around:
    """Looks through a whole list for each tensor only where that matters."""
    last: list[Any] = [None, False]

    def call(original: Any, strategy: Any, schema: Any) -> None:
        if last[0] is not schema:
            placements = (one for spec in schema.args_spec for one in spec.placements)
            last[:] = schema, any(type(one).__name__ == "_StridedShard" for one in placements)
        if last[1]:
            original(strategy, schema)

    return call
