"""The arguments that an optimizer's class is built with, without PyTorch."""

from typing import Any

from memcalc.registry.lookup import pair
from memcalc.registry.row import NUMBERS, Choice

LEARNING_RATE = 1e-4
_SETTLED = ("is_paged", "optim_bits", "percentile_clipping")


def list_arguments(choice: Choice) -> dict[str, Any]:
    """Return an optimizer's constructor arguments except ``lr``; dtypes as names."""
    arguments: dict[str, Any] = {
        key: value
        for key, value in choice.given.items()
        # Said again what the class's name says already: its constructor may not take it.
        if key != "32bit" and not (key in _SETTLED and value == choice.row.defaults.get(key))
    }
    if choice.row.package == "torchdistx":
        arguments = {**choice.args, **arguments}
    for key, value in arguments.items():
        if key in NUMBERS and isinstance(value, str):
            arguments[key] = pair(value)
    if choice.args.get("fused") and choice.row.package == "torch":
        arguments["fused"] = True
    if choice.row.package == "bitsandbytes" and "momentum" in choice.row.defaults:
        arguments.setdefault("momentum", choice.args["momentum"])
    return arguments
