"""Checkpoints of packages: their tensors are not written, all else is.

Nothing of PyTorch's distributed checkpoints is written: other ranks write most of them.
"""

import functools
import os
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.script.checkpoint_marks import note_folder
from memcalc.script.saving import NOT_WRITTEN


def install(patches: Patches) -> None:
    """Patch saving in transformers, peft and torch.distributed.checkpoint to write no tensors."""
    saved = _Saved(patches)
    patches.wrap_later(_MODELS, "PreTrainedModel.save_pretrained", saved.model)
    patches.wrap_later("peft.peft_model", "PeftModel.save_pretrained", saved.model)
    patches.wrap_later(_TOKENIZERS, "PreTrainedTokenizerBase.save_pretrained", saved.save)
    for name, around in (
        *((name, saved.by_trainer) for name in ("_save_checkpoint", "save_model")),
        *((name, saved.not_written) for name in _NOT_WRITTEN),
    ):
        patches.wrap_later("transformers.trainer", f"Trainer.{name}", around)

    def patch_sharding(module: ModuleType) -> None:
        for name, instead in (
            *(("save", saved.shards), ("save_state_dict", saved.shards)),
            *(("async_save", saved.shards_later), ("load", saved.load_shards)),
        ):
            if hasattr(module, name):
                original = getattr(module, name)
                patches.set_everywhere(module, name, functools.partial(instead, original))

    for module in ("state_dict_saver", "state_dict_loader"):
        patches.when_imported(f"torch.distributed.checkpoint.{module}", patch_sharding)


_MODELS = "transformers.modeling_utils"
_TOKENIZERS = "transformers.tokenization_utils_base"
_NOT_WRITTEN = ("save_state", "save_metrics", "push_to_hub", "_push_from_checkpoint")
"""Methods of a Trainer that do nothing."""


_PLACES = ("checkpoint_id", "storage_writer", "storage_reader")
"""What names the place of a sharded checkpoint: a folder, or what has one as ``path``."""


class _Saved:
    """Replacements of functions that save and load."""

    def __init__(self, patches: Patches) -> None:
        self._patches = patches
        self._sharded: set[str] = set()

    def save(self, original: Any, one: Any, save_directory: Any, *args: Any, **kw: Any) -> Any:
        """Note a checkpoint's folder, and save without a push to the hub."""
        kw.pop("push_to_hub", None)
        note_folder(os.fspath(save_directory))
        return original(one, save_directory, *args, **kw)

    def model(self, original: Any, model: Any, save_directory: Any, *args: Any, **kw: Any) -> None:
        """Replace a model's ``save_pretrained``: write no tensors; nothing if quantized."""
        self.not_written(original)
        if getattr(model, "hf_quantizer", None) is None:
            self.save(original, model, save_directory, *args, **kw)

    def not_written(self, original: Any, *args: Any, **kwargs: Any) -> None:
        """Replace a method that saves: only report that checkpoints are not written."""
        self._patches.say(NOT_WRITTEN, source_lines.find_line())

    def by_trainer(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
        """Replace a Trainer's method that saves: call it only in a run of one process."""
        self.not_written(original)
        if trainer.args.world_size == 1:
            original(trainer, *args, **kwargs)

    def shards(self, original: Any, state_dict: Any, *args: Any, **named: Any) -> None:
        """Replace a sharded save: make the checkpoint's folder, and write nothing into it."""
        self.not_written(original)
        if (folder := _find_folder(args, named)) is not None:
            os.makedirs(folder, exist_ok=True)
            self._sharded.add(os.path.realpath(folder))

    def shards_later(self, original: Any, *args: Any, **named: Any) -> Future[None]:
        """Replace an asynchronous sharded save; return a future that is done."""
        self.shards(original, *args, **named)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def load_shards(self, original: Any, state_dict: Any, *args: Any, **named: Any) -> None:
        """Replace a sharded load: skip a checkpoint of this run, which has no tensors to read."""
        folder = _find_folder(args, named)
        if folder is None or os.path.realpath(folder) not in self._sharded:
            original(state_dict, *args, **named)


def _find_folder(args: Any, named: dict[str, Any]) -> str | None:
    """Return the folder of a sharded checkpoint, or None if it goes elsewhere."""
    place = next((named[key] for key in _PLACES if named.get(key) is not None), None)
    if place is None:
        place = next(iter(args), None)
    place = getattr(place, "path", place)
    return os.fspath(place) if isinstance(place, str | os.PathLike) else None
