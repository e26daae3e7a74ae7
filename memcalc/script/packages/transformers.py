"""transformers: checkpoints that are not on this machine are not fetched; bundled configs are."""

import copy
import os
from typing import Any

import torch

from memcalc.catalog.models import is_reachable, without_hub
from memcalc.catalog.quantized import settings_in
from memcalc.engine.patches import Patches
from memcalc.script.large_weights import NOT_HERE, of_hub
from memcalc.workload.quantized import held_once, quantize


def install(patches: Patches) -> None:
    """Act when transformers is imported, and say what a checkpoint is taken to be."""

    def not_fetched(original: Any, cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
        config = _config(cls, name, kwargs)
        if config is None:
            return original(cls, name, *args, **kwargs)
        patches.say(NOT_HERE.format(name))
        weights = _as_config_says(cls, _in_folder(config, name, kwargs))
        of_config = _set(config, kwargs) if "config" not in kwargs else set()
        left_out = {"config", *of_config}
        named = {key: value for key, value in kwargs.items() if key not in left_out}
        loaded = original(cls, None, *args, config=config, state_dict=weights, **named)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        model.name_or_path = model.config._name_or_path = str(name)
        return loaded

    def bundled(original: Any, cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        config = without_hub(str(name))
        if config is None or os.path.isdir(name) or _is_found(str(name), kwargs):
            return original(cls, name, *args, **kwargs)
        patches.say(f"the hub cannot be reached: the config of {name} is the one memcalc ships")
        hubs = of_hub(kwargs)
        left = {key: value for key, value in kwargs.items() if key not in hubs}
        return copy.deepcopy(config), left

    models, configs = "transformers.modeling_utils", "transformers.configuration_utils"
    patches.wrap_later(models, "PreTrainedModel.from_pretrained", not_fetched)
    patches.wrap_later(configs, "PreTrainedConfig.get_config_dict", bundled)


def _is_found(name: str, options: dict[str, Any]) -> bool:
    """A config is in the hub's cache, or the hub gives it: asked once, since its client retries."""
    from huggingface_hub import try_to_load_from_cache

    where = {key: options.get(key) for key in ("cache_dir", "revision")}
    if isinstance(try_to_load_from_cache(name, "config.json", **where), str):
        return True
    try:
        return is_reachable(name, options.get("revision"))
    except Exception:  # No access, or no such revision.
        return False


_FILES = (("model", "safetensors"), ("pytorch_model", "bin"))
_KINDS = (".safetensors", ".bin", ".index.json", ".gguf", ".h5", ".msgpack", ".ckpt")
"""How names of files end that hold weights, or say where they are."""


def _is_here(name: str, options: dict[str, Any]) -> bool:
    """A model's weights lie in a folder, or in the hub's cache; a folder may hold other things."""
    from huggingface_hub import try_to_load_from_cache

    inside, variant = options.get("subfolder") or "", options.get("variant")
    if os.path.isdir(name):
        folder = os.path.join(name, inside)
        lying = os.listdir(folder) if os.path.isdir(folder) else []
        return "config.json" not in lying or any(one.endswith(_KINDS) for one in lying)
    where = {"cache_dir": options.get("cache_dir"), "revision": options.get("revision")}
    for stem, kind in _FILES:
        file = f"{stem}.{variant}.{kind}" if variant else f"{stem}.{kind}"
        for entry in (file, f"{file}.index.json"):
            at = f"{inside}/{entry}" if inside else entry
            if isinstance(try_to_load_from_cache(name, at, **where), str):
                return True
    return False


def _config(cls: Any, name: Any, options: dict[str, Any]) -> Any:
    """The config to make weights of; ``None``: they are here, or are no plain checkpoint."""
    if name is None or options.keys() & {"state_dict", "gguf_file"} or _is_here(name, options):
        return None
    config = options.get("config")
    if config is None or isinstance(config, str | os.PathLike):
        config = cls.config_class.from_pretrained(config or name, **of_hub(options))
    quantized = getattr(config, "quantization_config", None) is not None
    known = not quantized or settings_in(config.to_dict()) is not None
    return copy.deepcopy(config) if known else None


_OF_LOADING = frozenset(
    ("dtype", "torch_dtype", "attn_implementation", "quantization_config", "device_map")
)
"""Arguments of ``from_pretrained`` that are no settings of a config, though it may have them."""


def _set(config: Any, options: dict[str, Any]) -> set[str]:
    """Set what a script says of the config as it loads a model; returns the names."""
    found = {name for name in options if name not in _OF_LOADING and hasattr(config, name)}
    for name in found:
        setattr(config, name, options[name])
    return found


def _in_folder(config: Any, name: Any, options: dict[str, Any]) -> Any:
    """What the checkpoint's own config says, of which the script's may differ: more classes."""
    try:
        return type(config).from_pretrained(name, **of_hub(options))
    except (OSError, ValueError):
        return config


def _saved(cls: Any, config: Any) -> Any:
    """The class whose weights a checkpoint holds, which a config names.

    What the script's own class has beyond these, such as the head of a classifier, is drawn anew
    when it loads them.
    """
    import transformers

    of_config = type(config)
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, name, None)
        if getattr(found, "config_class", None) is of_config:
            return found
    return cls


def _as_config_says(cls: Any, config: Any) -> dict[str, torch.Tensor]:
    """Tensors of a checkpoint, in the type it is kept in, without numbers."""
    bare, told = copy.deepcopy(config), settings_in(config.to_dict())
    if told is not None:
        del bare.quantization_config
    with torch.device("meta"):
        made = _saved(cls, config)(bare)
    kept = getattr(config, "dtype", None)
    if isinstance(kept, torch.dtype):
        for tensor in (*made.parameters(), *made.buffers()):
            if tensor.dtype.is_floating_point:
                tensor.data = tensor.data.to(kept)
    if told is not None:
        quantize(made, told, kept if isinstance(kept, torch.dtype) else torch.float32)
    return {
        # What says how a weight was quantized has its numbers.
        name: torch.empty_like(tensor, device="cpu") if tensor.is_meta else tensor
        for name, tensor in held_once(made).items()
    }
