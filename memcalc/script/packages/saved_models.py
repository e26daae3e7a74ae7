"""transformers: models and a Trainer's state are not written, and what was saved is found again."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.script.files import NOT_WRITTEN
from memcalc.script.packages.checkpoints import SavedFolders

_NOT_PUSHED = {"push_to_hub": False}


def install(patches: Patches, say: Callable[[str], None], folders: SavedFolders) -> None:
    """Act when transformers is imported.

    Args:
        patches: what is changed.
        say: told what was not done.
        folders: where models are saved.
    """
    trainers = _Trainers(say, folders)

    def tokenizers(module: ModuleType) -> None:
        def save(original: Any, tokenizer: Any, save_directory: Any, *args: Any, **kw: Any) -> Any:
            return original(
                tokenizer, folders.instead(save_directory), *args, **{**kw, **_NOT_PUSHED}
            )

        patches.wrap(module.PreTrainedTokenizerBase, "save_pretrained", save)
        folders.read_by(module.PreTrainedTokenizerBase, "from_pretrained", 1)

    def models(module: ModuleType) -> None:
        def save(original: Any, model: Any, save_directory: Any, *args: Any, **kw: Any) -> None:
            say(source_lines.named(NOT_WRITTEN))
            if getattr(model, "hf_quantizer", None) is None:
                original(model, folders.instead(save_directory), **{**kw, **_NOT_PUSHED})

        patches.wrap(module.PreTrainedModel, "save_pretrained", save)
        folders.read_by(module.PreTrainedModel, "from_pretrained", 1)

    def automatic(module: ModuleType) -> None:
        folders.read_by(module._BaseAutoModelClass, "from_pretrained", 1)

    def configs(module: ModuleType) -> None:
        folders.read_by(module.PreTrainedConfig, "get_config_dict", 1)

    patches.when_imported("transformers.trainer", lambda module: trainers.wrap(module, patches))
    patches.when_imported("transformers.tokenization_utils_base", tokenizers)
    patches.when_imported("transformers.modeling_utils", models)
    patches.when_imported("transformers.models.auto.auto_factory", automatic)
    patches.when_imported("transformers.configuration_utils", configs)


class _Trainers:
    """What a Trainer saves is kept aside; arguments as for ``install``."""

    def __init__(self, say: Callable[[str], None], folders: SavedFolders) -> None:
        self._say, self._folders = say, folders

    def wrap(self, module: ModuleType, patches: Patches) -> None:
        """Change the Trainer of a module."""
        patches.wrap(module.Trainer, "_save_checkpoint", self._save_checkpoint)
        patches.wrap(module.Trainer, "_get_output_dir", self._output_dir)
        patches.wrap(module.Trainer, "save_model", self._save_model)
        for name in ("save_state", "save_metrics", "push_to_hub", "_push_from_checkpoint"):
            patches.wrap(module.Trainer, name, self._not_written)

    def _not_written(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self._say(source_lines.named(NOT_WRITTEN))

    def _save_model(
        self, original: Any, trainer: Any, output_dir: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        self._not_written(original)
        # Several processes would gather their shards first.
        if trainer.args.world_size == 1:
            folder = self._folders.instead(output_dir or trainer.args.output_dir)
            original(trainer, folder, *args, **kwargs)

    def _save_checkpoint(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
        self._not_written(original)
        if trainer.args.world_size == 1:
            original(trainer, *args, **kwargs)

    def _output_dir(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> str:
        # Rotation removes old checkpoints there, and none of the user's.
        return self._folders.instead(original(trainer, *args, **kwargs))
