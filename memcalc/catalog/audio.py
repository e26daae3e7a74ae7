"""Sizes of audio features for each model type (configs/sound.json)."""

import functools

import msgspec

from memcalc.files import shipped
from memcalc.files.artifact import decode


class AudioTensor(msgspec.Struct, frozen=True, kw_only=True):
    """A model input made from a recording."""

    shape: tuple[int, ...]
    """Without the batch."""
    dtype: str
    mask: bool = False
    """True if it marks the frames that are padding."""
    bins: int | None = None
    """The axis of frequency bins, whose number the config names."""
    window: int | None = None
    """The axis of frames that is padded to the encoder's length, twice its positions."""


class Sound(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of a model for ten seconds of one recording."""

    inputs: dict[str, AudioTensor]
    tokens: int | None = None
    """Tokens of a language model that it takes the place of, or None."""


def find_recording(model_type: str) -> Sound | None:
    """Return the input tensors a model type makes of ten seconds of audio, or None."""
    return table().get(model_type)


@functools.cache
def table() -> dict[str, Sound]:
    """Read the audio inputs of all model types, by model type."""
    return shipped.read("sound.json", lambda data: decode(dict[str, Sound], data["types"]))
