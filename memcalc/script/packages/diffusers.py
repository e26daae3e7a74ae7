"""diffusers: checkpoints that are not on this machine are not fetched."""

import contextlib
from types import ModuleType
from typing import Any

import torch

from memcalc.engine.patches import Patches
from memcalc.script.large_weights import NOT_HERE, of_hub


def install(patches: Patches) -> None:
    """Patch ``from_pretrained`` to make weights from the config if no checkpoint is local.

    Installed when diffusers is imported.
    """

    def patch_models(module: ModuleType) -> None:
        def load(original: Any, cls: Any, name: Any = None, *args: Any, **kwargs: Any) -> Any:
            config = None
            if not _has_weights(module, name, kwargs):
                config = cls.load_config(kwargs.get("config") or name, **of_hub(kwargs))
            if config is None or config.get("quantization_config") is not None:
                return original(cls, name, *args, **kwargs)
            patches.say(NOT_HERE.format(name))
            with torch.device("meta"):
                made = cls.from_config(config).state_dict()
            # In fp32: loading casts them to the dtype that the script wants.
            weights = {name: torch.empty_like(one, device="cpu") for name, one in made.items()}
            file = module.SAFETENSORS_WEIGHTS_NAME
            with Patches() as inside:
                inside.set(module, "_get_model_file", lambda *_, **__: file)
                inside.set(module, "_fetch_index_file", lambda *_, **__: None)
                inside.set(module, "_fetch_index_file_legacy", lambda *_, **__: None)
                inside.set(module, "load_state_dict", lambda *_, **__: dict(weights))
                return original(cls, name, *args, **kwargs)

        patches.wrap(module.ModelMixin, "from_pretrained", load)

    def download(original: Any, *args: Any, ignore_patterns: Any = None, **kwargs: Any) -> Any:
        ignored = [*(ignore_patterns or []), *_WEIGHTS]
        return original(*args, ignore_patterns=ignored, **kwargs)

    patches.when_imported("diffusers.models.modeling_utils", patch_models)
    patches.wrap_later("diffusers.pipelines.pipeline_utils", "snapshot_download", download)


_WEIGHTS = ("*.safetensors", "*.bin", "*.ckpt", "*.msgpack", "*.onnx", "*.index.json")
"""Files of a pipeline's repository that a model's config takes the place of."""


def _has_weights(module: ModuleType, name: Any, options: dict[str, Any]) -> bool:
    """Return True if a model's weights are in a folder, or in the hub's cache."""
    where = of_hub(options) | {"local_files_only": True}
    files = [module.SAFETENSORS_WEIGHTS_NAME, module.WEIGHTS_NAME]
    for file in (*files, module.SAFE_WEIGHTS_INDEX_NAME, module.WEIGHTS_INDEX_NAME):
        variant = module._add_variant(file, options.get("variant"))
        with contextlib.suppress(OSError):
            module._get_model_file(name, weights_name=variant, **where)
            return True
    return False
