"""peft: adapters are saved where they can be loaded again, and the script's folders stay."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.script.files import NOT_WRITTEN
from memcalc.script.packages.checkpoints import SavedFolders


def install(patches: Patches, say: Callable[[str], None], folders: SavedFolders) -> None:
    """Act when peft is imported.

    Args:
        patches: what is changed.
        say: told what was not done.
        folders: where adapters are saved.
    """

    def save(original: Any, model: Any, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        say(source_lines.named(NOT_WRITTEN))
        kwargs.pop("push_to_hub", None)
        original(model, folders.instead(save_directory), *args, **kwargs)

    def models(module: ModuleType) -> None:
        patches.wrap(module.PeftModel, "save_pretrained", save)
        folders.read_by(module.PeftModel, "from_pretrained", 2)
        folders.read_by(module.PeftModel, "load_adapter", 1)

    def configs(module: ModuleType) -> None:
        folders.read_by(module.PeftConfigMixin, "from_pretrained", 1)
        folders.read_by(module.PeftConfigMixin, "_get_peft_type", 1)

    patches.when_imported("peft.peft_model", models)
    patches.when_imported("peft.config", configs)
