"""Recordings as a feature extractor makes them, and the codes that speech models train on.

The sizes that each extractor makes are recorded (``catalog.audio``), unless a config names them.
Shapes: B batch, S tokens.
"""

from typing import Any

import torch

from memcalc.catalog import audio
from memcalc.catalog.audio import AudioTensor, Sound

SECONDS = 10
"""Length of a recording for models that take any length."""
_ENCODERS = ("audio_config", "encoder_config", "encoder")
_BINS = ("num_mel_bins", "feature_projection_input_dim", "input_dim")
_PER_TOKEN = "audio_length_per_tok"
"""The setting of configs for the number of frames that go with each token."""
_OF_CODES = ("kyutai_speech_to_text",)
"""Models that read the codes of a codec beside each token of text."""


class Recordings:
    """Makes the audio tensors of one model's batches; ``names``: arguments of its forward."""

    def __init__(self, model: torch.nn.Module, names: frozenset[str]) -> None:
        self._model = model
        self._names = names
        self._config: Any = getattr(model, "config", None)
        parts = (getattr(self._config, name, None) for name in _ENCODERS)
        self._encoder: Any = next(
            (one for one in parts if hasattr(one, "model_type")), self._config
        )
        self._known = self._find_extractor()
        self.follows = hasattr(self._config, _PER_TOKEN) and "input_features" in names
        """The model hears a few frames with each token: there are as many as the tokens need."""
        self.token: int | None = getattr(self._config, "audio_token_id", None)
        """The token that the model replaces by sound."""
        among = self.token is not None and "input_ids" in names and not self.follows
        known = self._known.tokens if self._known is not None else None
        self.tokens = (known or 0) if among else 0
        """How many such tokens each sample has, before the tokens of its text."""

    def _find_extractor(self) -> Sound | None:
        """Return the tensors the model's feature extractor makes, or None if forward takes none."""
        for part in (self._config, self._encoder):
            found = audio.find_recording(str(getattr(part, "model_type", "")))
            inputs = found.inputs.items() if found is not None else ()
            if any(name in self._names for name, one in inputs if not one.mask):
                return found
        return None

    def make(self, batch: Any, seq: Any, device: Any) -> dict[str, torch.Tensor]:
        """Make the audio tensors of a batch, in the dtype of the model's weights."""
        weights = (p.dtype for p in self._model.parameters() if p.is_floating_point())
        like = {"dtype": next(weights, torch.float32), "device": device}
        if self.follows:
            frames = seq * int(getattr(self._config, _PER_TOKEN))
            return {"input_features": torch.zeros(batch, self._find_bin_count(80), frames, **like)}
        if self._known is None:
            return self._guess_tensors(batch, like)
        # Processors rename the extractor's mask where the text has one.
        renamed = {"attention_mask": "input_features_mask"} if "input_ids" in self._names else {}
        inputs = {renamed.get(name, name): one for name, one in self._known.inputs.items()}
        return {
            name: self._make_tensor(one, batch, like)
            for name, one in inputs.items()
            if name in self._names
        }

    def _make_tensor(self, one: AudioTensor, batch: Any, like: dict[str, Any]) -> torch.Tensor:
        shape, kind = list(one.shape), getattr(torch, one.dtype)
        if one.bins is not None:
            shape[one.bins] = self._find_bin_count(shape[one.bins])
        positions = getattr(self._encoder, "max_source_positions", None)
        if one.window is not None and positions is not None:
            shape[one.window] = 2 * int(positions)
        if not one.mask:
            own = {} if kind.is_floating_point else {"dtype": kind}
            return torch.zeros(batch, *shape, **like | own)
        # Made on the host, as by an extractor: how long each sample is, is known on the device.
        mask = torch.ones(batch, shape[0], dtype=kind, device="cpu")
        mask[:, -1:].zero_()
        return mask.to(like["device"])

    def _find_bin_count(self, otherwise: int) -> int:
        named = (getattr(self._encoder, name, None) for name in _BINS)
        return next((int(number) for number in named if number is not None), otherwise)

    def _guess_tensors(self, batch: Any, like: dict[str, Any]) -> dict[str, torch.Tensor]:
        """Make raw samples or spectrogram frames for a model without a known feature extractor.

        (B, bins, frames) where positions limit them, as Whisper's do; else (B, frames, bins).
        """
        if "input_features" not in self._names:
            return {"input_values": torch.zeros(batch, 16000 * SECONDS, **like)}
        positions = getattr(self._encoder, "max_source_positions", None)
        if positions is not None:
            shape = batch, self._find_bin_count(80), 2 * int(positions)
            return {"input_features": torch.zeros(shape, **like)}
        frames = 100 * SECONDS
        bins = self._find_bin_count(int(getattr(self._encoder, "d_model", None) or 80))
        found = {"input_features": torch.zeros(batch, frames, bins, **like)}
        if "attention_mask" in self._names and "input_ids" not in self._names:
            mask = torch.ones(batch, frames, dtype=torch.long, device=like["device"])
            mask[:, -1:].zero_()
            found["attention_mask"] = mask
        return found


def codebooks(config: Any) -> int | None:
    """Return how many codebooks a token of the model has, or None if a token is one number."""
    kind = str(getattr(config, "model_type", ""))
    return 1 + int(config.num_codebooks) if kind in _OF_CODES else None


def make_codes(config: Any, batch: Any, device: Any) -> dict[str, torch.Tensor] | None:
    """Make the decoder inputs and labels of a speech-generating model; None for another.

    A codec has made codes of the recording, in several channels, each channel later than the one
    before. Their beginning and their end are codes as well, and each code predicts the next.
    """
    known = audio.find_recording(str(getattr(config, "model_type", "")))
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
