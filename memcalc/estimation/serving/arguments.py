"""Settings of a serving engine, by its own names."""

from typing import Annotated, Any, Literal

from msgspec import Meta

from memcalc.errors import SettingError
from memcalc.records.plan import Plan
from memcalc.records.values import checked

SHARE = Annotated[float, Meta(ge=0.01, le=1, title="a share from 0.01 to 1")]
COUNT = Annotated[int, Meta(ge=1, le=1 << 53, title="a whole number from 1")]
SWITCH = bool
CACHE_TYPE = Literal["auto", "bfloat16", "float16", "fp8", "fp8_e4m3", "fp8_e5m2"]


def read(plan: Plan, known: dict[str, Any]) -> dict[str, Any]:
    """The engine's arguments of a plan, each of its known type.

    Raises:
        SettingError: one is unknown, or of the wrong type or size.
    """
    found = {}
    for name, value in plan.engine_args:
        if name not in known:
            raise SettingError(
                "engine_args",
                f"--engine-arg {name} is not one that memcalc reads for {plan.engine}: those are "
                f"{', '.join(known)}.",
            )
        try:
            found[name] = checked(f"--engine-arg {name}", known[name], value)
        except SettingError as error:
            raise SettingError("engine_args", str(error)) from None
    return found


def element(cache_type: str, own: int) -> int:
    """Bytes of an element of a cache of this type; ``auto``: those of the weights' own."""
    if cache_type == "auto":
        return own
    return 1 if cache_type.startswith("fp8") else 2
