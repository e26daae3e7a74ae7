"""Sizes of audio features for each model type (configs/sound.json)."""

import functools

import msgspec

from memcalc.files import shipped
from memcalc.files.artifact import decode


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """An input of a recording."""

    shape: tuple[int, ...]
    """Without the batch."""
    dtype: str
    mask: bool = False
    """It says which frames are padding."""
    bins: int | None = None
    """The axis of frequency bins, as many as the config names."""
    window: int | None = None
    """The axis of frames that is padded to all that the encoder reads, twice its positions."""


class Sound(msgspec.Struct, frozen=True, kw_only=True):
    """Ten seconds of one recording."""

    inputs: dict[str, Tensor]
    tokens: int | None = None
    """Places that it takes among the tokens of a language model; ``None``: it takes none."""


def of(model_type: str) -> Sound | None:
    """Return what the feature extractor of this model type makes; None: it has none."""
    return table().get(model_type)


@functools.cache
def table() -> dict[str, Sound]:
    """Return all, by model type."""
    return shipped.read("sound.json", lambda data: decode(dict[str, Sound], data["types"]))
