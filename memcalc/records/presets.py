"""What people usually mean by a word, such as ``qlora``, as settings of a plan."""

from collections.abc import Mapping
from typing import Any

from memcalc.records.compact_options import USUAL_LORA
from memcalc.records.values import Scalar

_HALF: dict[str, Scalar] = {"precision": "bf16", "optim": "paged_adamw_8bit", "checkpointing": True}
PRESETS: dict[str, dict[str, Scalar]] = {
    "full": _HALF,
    "lora": {**_HALF, "lora": USUAL_LORA},
    "qlora": {**_HALF, "lora": USUAL_LORA, "quant": "nf4-dq"},
}
"""What people usually mean by a word, as settings of a plan."""
_OF_TRAINING = ("optim", "checkpointing")


def with_preset(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings with what their preset stands for; what they say themselves is left as it is."""
    name = settings.get("preset")
    stands_for = PRESETS.get(name, {}) if isinstance(name, str) else {}
    said = {str(key).replace("-", "_"): value for key, value in settings.items()}
    if said.get("generate") is not None or said.get("inference"):
        # Once it is trained it is as it was loaded, and nothing of training is left.
        stands_for = {key: one for key, one in stands_for.items() if key not in _OF_TRAINING}
    return {**settings, **{key: one for key, one in stands_for.items() if key not in said}}
