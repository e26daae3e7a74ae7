"""Checkpoints of packages: what is saved lies in the overlay's mirror, and is found again there.

transformers and peft save by Python's functions and safetensors', and load so. Only tokenizers are
written and read by code that is not Python, so their folder in the mirror is made whole before. Of
PyTorch's distributed checkpoints a rank writes only its share, and nothing is written.
"""

import functools
import os
from concurrent.futures import Future
from types import ModuleType
from typing import Any

from memcalc.engine import source_lines
from memcalc.engine.patches import Patches
from memcalc.script.overlay import Overlay, full
from memcalc.script.saving import NOT_WRITTEN

_COPIED = 1 << 24
"""Bytes up to which a file is copied: configs and tokenizers, which may be written again."""


def install(patches: Patches, overlay: Overlay) -> None:
    """Act when the packages are imported: save models in the overlay, and say so."""
    saved = _Saved(patches, overlay)

    patches.wrap_later(_MODELS, "PreTrainedModel.save_pretrained", saved.model)
    patches.wrap_later("peft.peft_model", "PeftModel.save_pretrained", saved.model)
    patches.wrap_later(_TOKENIZERS, "PreTrainedTokenizerBase.save_pretrained", saved.save)
    patches.wrap_later(_TOKENIZERS, "PreTrainedTokenizerBase.from_pretrained", saved.load_tokenizer)
    for name, around in (
        ("_save_checkpoint", saved.checkpoint),
        ("_get_output_dir", saved.output_dir),
        ("save_model", saved.by_trainer),
        *((name, saved.not_written) for name in _NOT_WRITTEN),
    ):
        patches.wrap_later("transformers.trainer", f"Trainer.{name}", around)

    def sharded(module: ModuleType) -> None:
        for name, instead in (
            *(("save", saved.shards), ("save_state_dict", saved.shards)),
            *(("async_save", saved.shards_later), ("load", saved.load_shards)),
        ):
            if hasattr(module, name):
                original = getattr(module, name)
                patches.set_everywhere(module, name, functools.partial(instead, original))

    for module in ("state_dict_saver", "state_dict_loader"):
        patches.when_imported(f"torch.distributed.checkpoint.{module}", sharded)


_MODELS = "transformers.modeling_utils"
_TOKENIZERS = "transformers.tokenization_utils_base"
_NOT_WRITTEN = ("save_state", "save_metrics", "push_to_hub", "_push_from_checkpoint")
"""Methods of a Trainer that do nothing."""


_PLACES = ("checkpoint_id", "storage_writer", "storage_reader")
"""What names the place of a sharded checkpoint: a folder, or what has one as ``path``."""


class _Saved:
    """Functions in place of those that save and load."""

    def __init__(self, patches: Patches, overlay: Overlay) -> None:
        self._patches, self._overlay = patches, overlay

    def _instead(self, folder: Any) -> str:
        """Where to save what shall go to a folder."""
        return self._overlay.folder(os.path.abspath(os.fspath(folder)))

    def save(self, original: Any, one: Any, save_directory: Any, *args: Any, **kw: Any) -> Any:
        kw.pop("push_to_hub", None)
        return original(one, self._instead(save_directory), *args, **kw)

    def model(self, original: Any, model: Any, save_directory: Any, *args: Any, **kw: Any) -> None:
        """The same of a model."""
        self.not_written(original)
        if getattr(model, "hf_quantizer", None) is None:
            self.save(original, model, save_directory, *args, **kw)

    def load_tokenizer(self, original: Any, cls: Any, name: Any, *args: Any, **kwargs: Any) -> Any:
        wanted, overlay = full(name), self._overlay
        at = overlay.where(wanted) if wanted is not None else None
        if wanted is None or at is None or at == wanted:
            return original(cls, name, *args, **kwargs)
        for file in overlay.names(wanted) if os.path.isdir(at) else ():
            lies, beside = os.path.join(wanted, file), os.path.join(at, file)
            if os.path.isfile(lies) and not os.path.lexists(beside):
                # Nobody writes into a copy of a large file, such as weights.
                small = os.path.getsize(lies) <= _COPIED
                (overlay.copy if small else overlay.borrow)(lies, lies)
        loaded = original(cls, at, *args, **kwargs)
        loaded.name_or_path = str(name)
        return loaded

    def not_written(self, original: Any, *args: Any, **kwargs: Any) -> None:
        self._patches.say(NOT_WRITTEN, source_lines.line())

    def by_trainer(
        self, original: Any, trainer: Any, output_dir: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """As ``Trainer.save_model``; several processes would gather their shards first."""
        self.not_written(original)
        if trainer.args.world_size == 1:
            folder = self._instead(output_dir or trainer.args.output_dir)
            original(trainer, folder, *args, **kwargs)

    def checkpoint(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> None:
        self.not_written(original)
        if trainer.args.world_size == 1:
            original(trainer, *args, **kwargs)

    def shards(self, original: Any, state_dict: Any, *args: Any, **named: Any) -> None:
        """Other ranks, which are not run, would write most of a sharded checkpoint."""
        self.not_written(original)
        if (folder := _folder(args, named)) is not None:
            os.makedirs(self._instead(folder), exist_ok=True)

    def shards_later(self, original: Any, *args: Any, **named: Any) -> Future[None]:
        self.shards(original, *args, **named)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def load_shards(self, original: Any, state_dict: Any, *args: Any, **named: Any) -> None:
        """Load into existing tensors: a checkpoint that this run saved has nothing to read."""
        folder = _folder(args, named)
        at = self._overlay.where(folder) if folder is not None else None
        if at is None or at == folder:
            original(state_dict, *args, **named)

    def output_dir(self, original: Any, trainer: Any, *args: Any, **kwargs: Any) -> str:
        """The folder of checkpoints: rotation removes old ones there, and never the user's."""
        return self._instead(original(trainer, *args, **kwargs))


def _folder(args: Any, named: dict[str, Any]) -> str | None:
    """Where a sharded checkpoint goes; ``None``: to no folder."""
    place = next((named[key] for key in _PLACES if named.get(key) is not None), None)
    if place is None:
        place = next(iter(args), None)
    return full(getattr(place, "path", place))
