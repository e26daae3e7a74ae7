"""Liger's kernels in place of a model's own, as ``TrainingArguments(use_liger_kernel=True)`` does.

Read in transformers 5.23 (``integrations/liger.py``) and liger-kernel 0.8.5
(``transformers/monkey_patch.py``).
"""

from __future__ import annotations

import importlib
import logging
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memcalc.catalog.models import ModelSource
from memcalc.errors import SettingError, UsageError
from memcalc.files import extras
from memcalc.imports import line

if TYPE_CHECKING:
    import torch

_PACKAGES = ("triton", "liger_kernel")
"""The packages that it needs."""
_LOGGER = "liger_kernel.transformers.monkey_patch"
_TABLE = "MODEL_TYPE_TO_APPLY_LIGER_FN = {"


def check(source: ModelSource) -> None:
    """Raise SettingError if Liger is not installed, or the model is not of transformers."""
    if source.factory is not None:
        why = f"liger is for models of transformers, and {source.name} is a callable: leave it out."
        raise SettingError("liger", why)
    for name in _PACKAGES:
        missing = extras.lacking("--liger needs", name, "liger-kernel")
        if missing is not None:
            raise SettingError("liger", f"{missing} on Linux, which Triton is made for.")


def knows(architecture: str | None) -> bool:
    """Return True if Liger is installed and has kernels for a model type, by its source text."""
    if architecture is None or any(find_spec(name) is None for name in _PACKAGES):
        return False
    found = find_spec(_PACKAGES[-1])
    for folder in (found and found.submodule_search_locations) or ():
        try:
            code = Path(folder, *_LOGGER.split(".")[1:]).with_suffix(".py").read_text("utf-8")
        except OSError:
            continue
        return f'"{architecture}":' in code.partition(_TABLE)[2].partition("\n}")[0]
    return False


def apply(model: torch.nn.Module) -> None:
    """Replace a model's layers by Liger's kernels.

    Raises:
        UsageError: Liger has none for it, or is not installed.
    """
    base: Any = importlib.import_module("transformers.trainer_utils").unwrap_peft_model(model)
    name = type(base).__name__
    # A causal language model's forward takes the place of any other's.
    if getattr(base, "get_output_embeddings", lambda: None)() is None:
        raise UsageError(
            f"Liger gives {name} the forward of a causal language model, and it has no output "
            "head: leave --liger out."
        )
    refusals: list[str] = []
    logger = logging.getLogger(_LOGGER)
    level = logger.level

    def note(record: logging.LogRecord) -> bool:
        # Only its log says why Liger leaves a model without kernels.
        if not record.getMessage().startswith("Applying"):
            refusals.append(record.getMessage())
        return False

    logger.addFilter(note)
    logger.setLevel(logging.INFO)
    try:
        importlib.import_module("transformers.integrations.liger").apply_liger_kernel(model, None)
    except ImportError as error:
        raise UsageError(f"--liger runs Liger's own code: {line(error)}.") from None
    except Exception as error:
        raise UsageError(f"Liger refuses {name}: {line(error)}.") from None
    finally:
        logger.removeFilter(note)
        logger.setLevel(level)
    if refusals:
        raise UsageError(f"{refusals[-1].rstrip('.')}: leave --liger out.")
