"""diffusers: checkpoints that are not on this machine are not fetched."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from memcalc.engine.patches import Patches
from memcalc.script.large_weights import NOT_HERE, of_hub


def install(patches: Patches) -> None:
    """Act when diffusers is imported, and say what a checkpoint is taken to be."""

    def models(module: ModuleType) -> None:
        def not_fetched(
            original: Any, cls: Any, name: Any = None, *args: Any, **kwargs: Any
        ) -> Any:
            config = None if _is_here(module, name, kwargs) else _config(cls, name, kwargs)
            if config is None:
                return original(cls, name, *args, **kwargs)
            patches.say(NOT_HERE.format(name))
            weights = _as_config_says(cls, config)
            with _read_as(module, weights):
                return original(cls, name, *args, **kwargs)

        patches.wrap(module.ModelMixin, "from_pretrained", not_fetched)

    def configs(original: Any, *args: Any, ignore_patterns: Any = None, **kwargs: Any) -> Any:
        ignored = [*(ignore_patterns or []), *_WEIGHTS]
        return original(*args, ignore_patterns=ignored, **kwargs)

    patches.when_imported("diffusers.models.modeling_utils", models)
    patches.wrap_later("diffusers.pipelines.pipeline_utils", "snapshot_download", configs)


_WEIGHTS = ("*.safetensors", "*.bin", "*.ckpt", "*.msgpack", "*.onnx", "*.index.json")
"""Files of a pipeline's repository that a model's config stands in for."""


def _is_here(module: ModuleType, name: Any, options: dict[str, Any]) -> bool:
    """A model's weights lie in a folder, or in the hub's cache."""
    where = of_hub(options) | {"local_files_only": True}
    files = [module.SAFETENSORS_WEIGHTS_NAME, module.WEIGHTS_NAME]
    indices = [module.SAFE_WEIGHTS_INDEX_NAME, module.WEIGHTS_INDEX_NAME]
    for file in (*files, *indices):
        kept = module._add_variant(file, options.get("variant"))
        try:
            module._get_model_file(name, weights_name=kept, **where)
        except OSError:
            continue
        return True
    return False


def _config(cls: Any, name: Any, options: dict[str, Any]) -> Any:
    """The config to make weights of; ``None``: its checkpoint is not a plain one."""
    config = cls.load_config(options.get("config") or name, **of_hub(options))
    return config if config.get("quantization_config") is None else None


def _as_config_says(cls: Any, config: Any) -> dict[str, torch.Tensor]:
    """Tensors of a checkpoint without numbers, in fp32: loading casts them to what is asked for."""
    with torch.device("meta"):
        made = cls.from_config(config)
    return {
        name: torch.empty_like(tensor, device="cpu") for name, tensor in made.state_dict().items()
    }


@contextmanager
def _read_as(module: ModuleType, weights: dict[str, torch.Tensor]) -> Iterator[None]:
    """What is loaded meanwhile is one file that holds these."""
    file = module.SAFETENSORS_WEIGHTS_NAME
    with Patches() as patches:
        patches.set(module, "_get_model_file", lambda *_, **__: file)
        patches.set(module, "_fetch_index_file", lambda *_, **__: None)
        patches.set(module, "_fetch_index_file_legacy", lambda *_, **__: None)
        patches.set(module, "load_state_dict", lambda *_, **__: dict(weights))
        yield
