"""Extensions in C++ and CUDA that a script builds: without them it goes another way."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from memcalc.script import place
from memcalc.script.patches import Patches

_SAID = "the extension {} is not built here: counted is what the script does without it"


def install(patches: Patches, say: Callable[[str], None]) -> None:
    """Say which are missing, where the script goes on.

    Args:
        patches: what is changed.
        say: told of each.
    """

    def build(original: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(name, *args, **kwargs)
        except Exception:
            say(place.named(_SAID.format(name)))
            raise

    def follow(module: ModuleType) -> None:
        for function in ("load", "load_inline"):
            patches.wrap(module, function, build)

    patches.when_imported("torch.utils.cpp_extension", follow)
