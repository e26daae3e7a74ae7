"""FSDP's settings, as accelerate and the Trainer spell them.

Source: accelerate 1.15.0, ``utils/dataclasses.py``, and transformers 5.23, ``training_args.py``.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.dialects.recipe import Keys
from memcalc.errors import UsageError
from memcalc.records.names import AUTOCAST_DTYPES, PREFETCHES, STRATEGIES, WRAPS
from memcalc.records.plan import Plan

_LEAST = 100_000_000
"""What ``accelerate launch`` takes for ``fsdp_min_num_params`` where a file names none."""
_SHORT = tuple(name.lower() for name in STRATEGIES)
"""Strategies as ``TrainingArguments.fsdp`` names them."""
_FIRST = 1


def read(told: Keys, half: str | None) -> tuple[int, dict[str, Any]]:
    """Read accelerate's FSDP keys; return FSDP's version and the layout's arguments.

    Args:
        told: the keys.
        half: the half precision that is computed in; None: none.

    Returns:
        FSDP's version, and the arguments of a plan's layout.

    Raises:
        UsageError: accelerate would not take them.
    """
    version = told.count("version") or _FIRST
    if version not in (_FIRST, 2):
        raise UsageError(f"{told.file}: fsdp_version = {version}, and there are 1 and 2.")
    found = _read_wrapping(told)
    if half is not None:
        found |= dict.fromkeys(("param_dtype", "reduce_dtype"), AUTOCAST_DTYPES[f"amp-{half}"])
    if told.flag("offload_params"):
        found["offload"] = "cpu"
    if version == _FIRST:
        found |= _read_fsdp1(told)
    elif not told.flag("reshard_after_forward", default=True):
        found["reshard_after_forward"] = False
    if version == 2 and told.flag("forward_prefetch"):
        raise UsageError(
            f"{told.file}: accelerate has no fsdp_forward_prefetch with fsdp_version 2."
        )
    return version, found


def _read_wrapping(keys: Keys) -> dict[str, Any]:
    policy = keys.choice("auto_wrap_policy", WRAPS, "NO_WRAP")
    least, names = keys.get("min_num_params"), keys.get("transformer_layer_cls_to_wrap")
    if policy == "NO_WRAP":
        return {"auto_wrap_policy": policy}
    if policy == "SIZE_BASED_WRAP":
        least = 0 if least in (0, "0") else keys.count("min_num_params") or _LEAST
        return {"auto_wrap_policy": policy, "min_num_params": least}
    if not names:
        return {}
    listed = names if isinstance(names, list) else str(names).split(",")
    return {"transformer_layer_cls_to_wrap": ",".join(str(name).strip() for name in listed)}


def _read_fsdp1(keys: Keys) -> dict[str, Any]:
    """Read the arguments that only FSDP1 has."""
    strategy = keys.choice("sharding_strategy", STRATEGIES, "FULL_SHARD")
    found: dict[str, Any] = {}
    if strategy != "FULL_SHARD":
        found["sharding_strategy"] = strategy
    # accelerate hands on no prefetching where the file names none; FSDP's own default is another.
    found["backward_prefetch"] = keys.choice("backward_prefetch", PREFETCHES, "NO_PREFETCH")
    if keys.flag("forward_prefetch"):
        found["forward_prefetch"] = True
    if not keys.flag("use_orig_params", default=True):
        found["use_orig_params"] = False
    return found


def translate(words: Any, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return TrainingArguments' ``fsdp`` and ``fsdp_config`` as accelerate's keys."""
    keys = {key.removeprefix("fsdp_"): value for key, value in config.items()}
    listed = words.split() if isinstance(words, str) else words if isinstance(words, list) else []
    strategy = next((str(word) for word in listed if word in _SHORT), None)
    keys.setdefault("version", 2)
    keys.setdefault("auto_wrap_policy", "TRANSFORMER_BASED_WRAP")
    keys.setdefault("min_num_params", 0)
    again = keys.pop("reshard_after_forward", strategy or "full_shard")
    if keys["version"] == _FIRST:
        keys.setdefault("sharding_strategy", str(again).upper())
    else:
        named = again in _SHORT
        keys["reshard_after_forward"] = again != "shard_grad_op" if named else again
        keys.pop("forward_prefetch", None)
    if keys.pop("cpu_offload", False) or "offload" in listed:
        keys["offload_params"] = True
    ours = ("xla", "xla_fsdp_v2", "xla_fsdp_grad_ckpt", "limit_all_gathers")
    return {key: value for key, value in keys.items() if key not in ours}


_ELSEWHERE = ("param_dtype", "reduce_dtype", "device_mesh")
"""Arguments that follow from the precision and from the number of machines."""


def write(plan: Plan, offload: str) -> dict[str, Any]:
    """Return a plan's FSDP arguments by accelerate's keys; ``offload``: the key of offloading."""
    options = dict(plan.parallel_args)
    offloads = options.pop("offload", None) == "cpu"
    kept = {key: value for key, value in options.items() if key not in _ELSEWHERE}
    return {
        "version": int((plan.parallel or "")[-1]),
        **kept,
        **({offload: True} if offloads else {}),
    }


def wrapped_by(options: Mapping[str, Any]) -> str:
    """Return FSDP's ``auto_wrap_policy`` in upper case, or its default."""
    return str(options.get("auto_wrap_policy", WRAPS[0])).upper()


def plugin(layout: str, options: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of accelerate's FSDP plugin for a layout, or None for another."""
    own: dict[str, Any]
    if layout == "fsdp2":
        own = {
            "fsdp_version": 2,
            "reshard_after_forward": options.get("reshard_after_forward", True),
        }
    elif layout == "fsdp1":
        # What ``accelerate launch`` and ``TrainingArguments`` tell it where nobody says more.
        own = {
            "fsdp_version": 1,
            "reshard_after_forward": options.get("sharding_strategy", "FULL_SHARD"),
            "backward_prefetch": options.get("backward_prefetch", "NO_PREFETCH"),
            "forward_prefetch": bool(options.get("forward_prefetch", False)),
            "use_orig_params": bool(options.get("use_orig_params", True)),
            "sync_module_states": True,
        }
    else:
        return None
    named = options.get("transformer_layer_cls_to_wrap")
    return {
        **own,
        "auto_wrap_policy": wrapped_by(options),
        "min_num_params": options.get("min_num_params"),
        "cpu_offload": options.get("offload") == "cpu",
        "cpu_ram_efficient_loading": False,
        "state_dict_type": "SHARDED_STATE_DICT",
        **({"transformer_cls_names_to_wrap": str(named).split(",")} if named else {}),
    }
