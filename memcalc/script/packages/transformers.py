"""transformers: checkpoints that are not on this machine are not fetched; bundled configs are."""

import copy
import os
from typing import Any

import torch

from memcalc.catalog.models import find_shipped_config, is_reachable
from memcalc.catalog.quantized import find_bnb_settings
from memcalc.engine.patches import Patches
from memcalc.script.large_weights import NOT_HERE, of_hub
from memcalc.workload.quantized import quantize, state_without_ties


def install(patches: Patches) -> None:
    """Patch ``from_pretrained`` to make weights from the config if no checkpoint is local.

    Installed when transformers is imported.
    """

    def load_or_make(original: Any, cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        config = _find_config(cls, name, kwargs)
        if config is None:
            return original(cls, name, *args, **kwargs)
        patches.say(NOT_HERE.format(name))
        weights = _make_weights(cls, _saved_config(config, name, kwargs))
        changed = set() if "config" in kwargs else _change_config(config, kwargs)
        named = {key: value for key, value in kwargs.items() if key not in {"config", *changed}}
        loaded = original(cls, None, *args, config=config, state_dict=weights, **named)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.name_or_path = model.config._name_or_path = str(name)
        return loaded

    def read_config(original: Any, cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        config = find_shipped_config(str(name))
        if config is None or os.path.isdir(name) or _is_reachable(str(name), kwargs):
            return original(cls, name, *args, **kwargs)
        patches.say(f"the hub cannot be reached: the config of {name} is the one memcalc ships")
        hubs = of_hub(kwargs)
        return copy.deepcopy(config), {k: value for k, value in kwargs.items() if k not in hubs}

    models, configs = "transformers.modeling_utils", "transformers.configuration_utils"
    patches.wrap_later(models, "PreTrainedModel.from_pretrained", load_or_make)
    patches.wrap_later(configs, "PreTrainedConfig.get_config_dict", read_config)


def _is_cached(name: str, file: str, options: dict[str, Any]) -> bool:
    from huggingface_hub import try_to_load_from_cache

    where = {key: options.get(key) for key in ("cache_dir", "revision")}
    return isinstance(try_to_load_from_cache(name, file, **where), str)


def _is_reachable(name: str, options: dict[str, Any]) -> bool:
    """Return True if a model's config.json is in the hub's cache, or the hub serves it.

    It is asked once, since its client retries.
    """
    try:
        cached = _is_cached(name, "config.json", options)
        return cached or is_reachable(name, options.get("revision"))
    except Exception:  # No access, or no such revision.
        return False


_FILES = (("model", "safetensors"), ("pytorch_model", "bin"))
_KINDS = (".safetensors", ".bin", ".index.json", ".gguf", ".h5", ".msgpack", ".ckpt")
"""Endings of files that hold weights, or say where they are."""


def _has_weights(name: str, options: dict[str, Any]) -> bool:
    """Return True if weights are in the hub's cache or a folder, or the folder has no model."""
    inside, variant = options.get("subfolder") or "", options.get("variant")
    if os.path.isdir(name):
        folder = os.path.join(name, inside)
        files = os.listdir(folder) if os.path.isdir(folder) else []
        return "config.json" not in files or any(one.endswith(_KINDS) for one in files)
    names = [f"{stem}.{variant}.{kind}" if variant else f"{stem}.{kind}" for stem, kind in _FILES]
    files = [os.path.join(inside, f"{name}{index}") for name in names for index in ("", _INDEX)]
    return any(_is_cached(name, file, options) for file in files)


_INDEX = ".index.json"


def _find_config(cls: Any, name: Any, options: dict[str, Any]) -> Any:
    """Return the config of a checkpoint that is not local; None: local, or not supported."""
    if name is None or options.keys() & {"state_dict", "gguf_file"} or _has_weights(name, options):
        return None
    config = options.get("config")
    if config is None or isinstance(config, str | os.PathLike):
        config = cls.config_class.from_pretrained(config or name, **of_hub(options))
    quantized = getattr(config, "quantization_config", None) is not None
    known = not quantized or find_bnb_settings(config.to_dict()) is not None
    return copy.deepcopy(config) if known else None


_OF_LOADING = frozenset(
    ("dtype", "torch_dtype", "attn_implementation", "quantization_config", "device_map")
)
"""Arguments of ``from_pretrained`` that are no settings of a config, though it may have them."""


def _change_config(config: Any, options: dict[str, Any]) -> set[str]:
    """Set keywords of ``from_pretrained`` that are config settings; return their names."""
    found = {name for name in options if name not in _OF_LOADING and hasattr(config, name)}
    for name in found:
        setattr(config, name, options[name])
    return found


def _saved_config(config: Any, name: Any, options: dict[str, Any]) -> Any:
    """Return the checkpoint's own config, or the given one if that cannot be loaded."""
    try:
        return type(config).from_pretrained(name, **of_hub(options))
    except (OSError, ValueError):
        return config


def _saved_class(cls: Any, config: Any) -> Any:
    """Return the model class that the config's ``architectures`` names, or ``cls``.

    Weights that only the script's own class has, such as a classifier's head, are drawn when it
    loads the others.
    """
    import transformers

    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if getattr(found, "config_class", None) is type(config):
            return found
    return cls


def _make_weights(cls: Any, config: Any) -> dict[str, torch.Tensor]:
    """Return a model's state dict, uninitialized, in the dtypes of its checkpoint."""
    bare, settings = copy.deepcopy(config), find_bnb_settings(config.to_dict())
    if settings is not None:
        del bare.quantization_config
    with torch.device("meta"):
        made = _saved_class(cls, config)(bare)
    dtype = getattr(config, "dtype", None)
    if isinstance(dtype, torch.dtype):
        for tensor in (*made.parameters(), *made.buffers()):
            if tensor.dtype.is_floating_point:
                tensor.data = tensor.data.to(dtype)
    if settings is not None:
        quantize(made, settings, dtype if isinstance(dtype, torch.dtype) else torch.float32)
    return {
        # Quantization scales have their numbers.
        name: torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor
        for name, tensor in state_without_ties(made).items()
    }
