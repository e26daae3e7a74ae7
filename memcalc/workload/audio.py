"""Recordings as a feature extractor hands them to a model, and the tokens they stand among.

What each extractor makes is recorded (``catalog.sound``); sizes that a config names are its own.
Shapes: B batch, S tokens.
"""

from typing import Any

import torch

from memcalc.catalog import audio
from memcalc.catalog.audio import Sound, Tensor

SECONDS = 10
"""Of audio, where a model takes any length."""
_ENCODERS = ("audio_config", "encoder_config", "encoder")
_BINS = ("num_mel_bins", "feature_projection_input_dim", "input_dim", "d_model")
_PER_TOKEN = "audio_length_per_tok"
"""What configs call the frames that are heard with each token."""


class Recordings:
    """Makes the recordings of one model's batches; ``names``: of what its forward takes."""

    def __init__(self, model: torch.nn.Module, names: frozenset[str]) -> None:
        self._model = model
        self._names = names
        self._config: Any = getattr(model, "config", None)
        self._encoder = _encoder(self._config)
        self._known = _known(self._config, names)
        self.follows = hasattr(self._config, _PER_TOKEN) and "input_features" in names
        """A few frames are heard with each token, so that there are as many as the tokens need."""
        self.spoken: int | None = getattr(self._config, "audio_token_id", None)
        """The token that stands where sound is put."""
        known = self._known.tokens if self._known is not None else None
        among = self.spoken is not None and "input_ids" in names and not self.follows
        self.tokens = (known or 0) if among else 0
        """Such places of a sample, before the tokens of its text."""

    def make(self, batch: Any, seq: Any, device: Any) -> dict[str, torch.Tensor]:
        """Recordings of so many samples, in the dtype of the weights: models convolve them."""
        weights = (p.dtype for p in self._model.parameters() if p.is_floating_point())
        dtype = next(weights, torch.float32)
        if self.follows:
            shape = batch, self._bins(80), seq * int(getattr(self._config, _PER_TOKEN))
            return {"input_features": torch.zeros(shape, dtype=dtype, device=device)}
        if self._known is None:
            return self._guessed(batch, dtype, device)
        return {
            self._called(name): self._tensor(one, batch, dtype, device)
            for name, one in self._known.inputs.items()
            if self._called(name) in self._names
        }

    def _called(self, name: str) -> str:
        """What the forward calls an input of the extractor; processors name masks anew."""
        if name != "attention_mask" or "input_ids" not in self._names:
            return name
        return "input_features_mask"

    def _tensor(self, one: Tensor, batch: Any, dtype: torch.dtype, device: Any) -> torch.Tensor:
        shape = list(one.shape)
        if one.bins is not None:
            shape[one.bins] = self._bins(shape[one.bins])
        positions = getattr(self._encoder, "max_source_positions", None)
        if one.window is not None and positions is not None:
            shape[one.window] = 2 * int(positions)
        kind = getattr(torch, one.dtype)
        if not one.mask:
            kind = dtype if kind.is_floating_point else kind
            return torch.zeros(batch, *shape, dtype=kind, device=device)
        # Made on the host, as by an extractor: how long each sample is, is known on the device.
        heard = torch.ones(batch, shape[0] - 1, dtype=kind, device="cpu")
        return torch.cat((heard, torch.zeros(batch, 1, dtype=kind, device="cpu")), dim=1).to(device)

    def _bins(self, otherwise: int) -> int:
        named = (getattr(self._encoder, name, None) for name in _BINS[:-1])
        return next((int(number) for number in named if number is not None), otherwise)

    def _guessed(self, batch: Any, dtype: torch.dtype, device: Any) -> dict[str, torch.Tensor]:
        """For an extractor that could not be run: samples, or frames of bins.

        (B, bins, frames) where positions limit them, as Whisper's do; else (B, frames, bins).
        """
        if "input_features" not in self._names:
            return {"input_values": torch.zeros(batch, 16000 * SECONDS, dtype=dtype, device=device)}
        positions = getattr(self._encoder, "max_source_positions", None)
        if positions is not None:
            shape = batch, self._bins(80), 2 * int(positions)
            return {"input_features": torch.zeros(shape, dtype=dtype, device=device)}
        frames = 100 * SECONDS
        bins = self._bins(int(getattr(self._encoder, _BINS[-1], None) or 80))
        features = torch.zeros(batch, frames, bins, dtype=dtype, device=device)
        if "attention_mask" not in self._names or "input_ids" in self._names:
            return {"input_features": features}
        mask = torch.ones(batch, frames, dtype=torch.long, device=device)
        mask[:, -1:].zero_()
        return {"input_features": features, "attention_mask": mask}


def codebooks(config: Any) -> int | None:
    """Numbers of which each token of the model consists; ``None``: it is one number."""
    kind = str(getattr(config, "model_type", ""))
    return 1 + int(config.num_codebooks) if kind in _OF_CODES else None


def decoded(config: Any, batch: Any, device: Any) -> dict[str, torch.Tensor] | None:
    """What the decoder of a model that speaks is trained on; ``None``: it does not.

    A codec has made codes of the recording, so many channels of them, each channel later than the
    one before. Their beginning and their end are codes as well, and what is foretold is one on.
    """
    known = audio.of(str(getattr(config, "model_type", "")))
    if known is None or known.tokens is None or not getattr(config, "delay_pattern", None):
        return None
    channels = len(config.delay_pattern)
    steps = known.tokens + max(config.delay_pattern) + 1
    long = {"dtype": torch.long, "device": device}
    mask = torch.ones(batch, steps, **long)
    mask[:, -1:].zero_()
    return {
        "decoder_input_ids": torch.ones(batch, steps, channels, dtype=torch.int, device=device),
        "decoder_attention_mask": mask,
        "labels": torch.ones(batch * channels, steps, **long),
    }


def notes(config: Any) -> tuple[str, ...]:
    """What an answer for such a model has to say."""
    if str(getattr(config, "model_type", "")) != "vibevoice":
        return ()
    return ("the diffusion loss of its audio is not counted, only the loss of its tokens",)


def _encoder(config: Any) -> Any:
    """The part of a config that says how its encoder hears."""
    parts = (getattr(config, name, None) for name in _ENCODERS)
    return next((part for part in parts if hasattr(part, "model_type")), config)


def _known(config: Any, names: frozenset[str]) -> Sound | None:
    """What the extractor of a model makes, or that of its encoder, if its forward takes it."""
    for part in (config, _encoder(config)):
        found = audio.of(str(getattr(part, "model_type", "")))
        if found is not None and any(
            name in names for name, one in found.inputs.items() if not one.mask
        ):
            return found
    return None


_OF_CODES = ("kyutai_speech_to_text",)
"""Models that read the codes of a codec beside each token of text."""
