"""DTensor's planning of operators over lists: equal tensors are planned once.

DTensor plans the sharding of each tensor in such a list separately. This takes most of the time of
an optimizer's step over a model of many layers. Here it plans one of each kind, and the others get
the same plan. Read in PyTorch 2.11 to 2.14 (torch/distributed/tensor); a release that
has other functions there plans as it does.
"""

import dataclasses
import itertools
from typing import Any

from memcalc.engine.patches import Patches

_EACH_BY_ITSELF = ("aten::_foreach_", "aten::_fused_")
"""How the names of operators begin that do the same to each tensor of a list."""


def plan_alike_once(patches: Patches) -> None:
    """Patch DTensor to plan an operator only once for equal tensors of a list."""
    place = "ShardingPropagator.propagate_op_sharding_non_cached"
    patches.wrap_later("torch.distributed.tensor._sharding_prop", place, _of_each_kind)


def _of_each_kind(original: Any, propagator: Any, schema: Any) -> Any:
    """Plan an operator over lists for one tensor of each kind; all others get that plan."""
    is_list = [isinstance(one, list | tuple) and bool(one) for one in schema.args_schema]
    lists = list(itertools.compress(schema.args_schema, is_list))
    if not schema.op.name().startswith(_EACH_BY_ITSELF) or len({len(one) for one in lists}) != 1:
        return original(propagator, schema)
    kinds: dict[tuple[Any, ...], int] = {}
    kind_of = [kinds.setdefault(each, len(kinds)) for each in zip(*lists, strict=True)]
    shorter = zip(*kinds, strict=True)
    args = [
        type(one)(next(shorter)) if shortens else one
        for one, shortens in zip(schema.args_schema, is_list, strict=True)
    ]
    found = original(propagator, dataclasses.replace(schema, args_schema=tuple(args)))
    if found.needs_redistribute:
        return original(propagator, schema)
    specs = found.output_spec
    return dataclasses.replace(found, output_spec=specs and tuple(specs[n] for n in kind_of))
