"""Synthetic batches with the shapes and types that a data loader would hand a model.

Shapes: B batch, S tokens, C channels, H height, W width.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import Enum
from typing import Any

import torch

from memcalc.catalog.positions import lengths
from memcalc.errors import SettingError, UsageError
from memcalc.records.values import parse_input
from memcalc.workload import audio
from memcalc.workload.audio import Recordings
from memcalc.workload.tasks import Task

Batch = dict[str, torch.Tensor]


class Use(Enum):
    """The use of batches: training, a forward pass or generation."""

    TRAINING = "training"
    FORWARD = "forward"
    """For a forward pass, without labels."""
    PROMPTS = "prompts"
    """For generation: prompts."""


class Inputs:
    """Makes the synthetic batches of one model; ``seq`` is the number of tokens per sample."""

    def __init__(
        self,
        model: torch.nn.Module,
        task: Task,
        *,
        batch: int,
        seq: int | None,
        padding: bool,
        use: Use = Use.TRAINING,
        images: torch.dtype = torch.float32,
    ) -> None:
        """Describe the batches of a model on any device.

        Args:
            model: what runs on them.
            task: decides on the labels.
            batch: samples of a batch.
            seq: tokens per sample; None: 512, or the model's longest when that is shorter.
            padding: pass an attention mask whose last position is padding.
            use: training, a forward pass or generation.
            images: their dtype.

        Raises:
            SettingError: the model takes no sequences of this length.
        """
        self.model, self.task, self.batch = model, task, batch
        self.padding, self.use, self.images = padding, use, images
        self.config: Any = getattr(model, "config", None)
        kind = str(getattr(self.config, "model_type", ""))
        self.names = frozenset(inspect.signature(without_adapters(model).forward).parameters)
        self.has_tokens = "input_ids" in self.names and kind not in _TOKENS_OR_SOUND
        takes_media = bool(self.names & _MEDIA) and kind not in _NEED_MEDIA
        self.text_only = self.has_tokens and takes_media and task.of_text
        """The model also takes images or sound, and trains on text without them."""
        self.recordings = Recordings(model, self.names)
        written: dict[str, Any] = getattr(self.config, "to_dict", dict)()
        self.lengths = lengths(written)
        refusal = self.lengths.refusal(type(model).__name__, seq)
        if refusal is not None:
            raise SettingError("seq", refusal)
        self.seq = self.lengths.exact or seq or self.lengths.default

    def make_room(self, tokens: int) -> None:
        """Raise SettingError if prompt and generated tokens exceed the model's positions.

        Raises:
            SettingError: its positions end before.
        """
        longest = self.lengths.longest
        if longest is None:
            return
        whole = tokens - 1 if self._has_encoder else self.seq + tokens - 1
        if whole > longest:
            most = longest - whole + tokens
            name = type(self.model).__name__
            raise SettingError(
                "generate",
                f"{name} has {longest} positions, and {tokens} tokens after a prompt of "
                f"{self.seq} need {whole}: "
                + (f"type --generate {most} or less." if most > 0 else "shorten --seq."),
            )

    def resize(self, batch: int, seq: int | None) -> Inputs:
        """Return inputs of the same model with another batch size and sequence length."""
        settings = {"padding": self.padding, "use": self.use, "images": self.images}
        return Inputs(self.model, self.task, batch=batch, seq=seq, **settings)  # type: ignore[arg-type]

    def make(self, device: Any) -> Batch:
        """Make a batch of tensors on a device, as keyword arguments of the model's forward."""
        batch: Batch = {} if self.text_only else self._make_media(device)
        if self.has_tokens:
            batch["input_ids"] = self._make_tokens(device)
            if "attention_mask" in self.names and (self.padding or self.use is Use.PROMPTS):
                batch["attention_mask"] = self._make_mask(device)
        takes_decoded = {"decoder_input_ids", "labels"} <= self.names and self._has_encoder
        if self.use is Use.FORWARD and takes_decoded:
            # The decoder reads as many tokens in one pass as there are labels.
            batch["decoder_input_ids"] = self._make_labels(device)["labels"]
        if self.use is not Use.TRAINING:
            return batch
        if "return_loss" in self.names and "labels" not in self.names:
            batch["return_loss"] = True  # type: ignore[assignment]
        if self.task.always_labelled or "labels" in self.names:
            speech = audio.make_codes(self.config, self.batch, device)
            takes_codes = speech is not None and "decoder_input_ids" in self.names
            batch.update(speech if takes_codes and speech else self._make_labels(device))
        return batch

    @property
    def goes_by_tokens(self) -> bool:
        """True if a shorter sequence length makes the batch's tensors smaller."""
        if self.has_tokens:
            return True
        sizes = [
            {name: getattr(value, "shape", value) for name, value in inputs.make("meta").items()}
            for inputs in (self, self.resize(self.batch, self.seq - 1 or 2))
        ]
        return sizes[0] != sizes[1]

    @property
    def has_audio(self) -> bool:
        """True if batches contain audio."""
        alone = "input_ids" not in self.names or self.recordings.tokens > 0
        given = "input_features" in self.names or ("input_values" in self.names and alone)
        return given and not self.text_only

    @property
    def has_images(self) -> bool:
        """True if batches contain images."""
        return "pixel_values" in self.names and not self.text_only

    @property
    def whole(self) -> Any:
        """The tokens of a sample, placeholders for audio included."""
        return self.seq if self.text_only else self.recordings.tokens + self.seq

    @property
    def _has_encoder(self) -> bool:
        return bool(getattr(self.config, "is_encoder_decoder", False))

    def _make_tokens(self, device: Any) -> torch.Tensor:
        """Make ``input_ids``: (B, S), or (B, S, codebooks), with the placeholders for audio."""
        places, codebooks = self.whole - self.seq, audio.codebooks(self.config)
        if codebooks is not None:
            return self._ones(device, self.seq, codebooks)
        token = self.recordings.token
        if places and token is not None:
            # Made on the host, as by a collator: what stands where is then known on the device.
            sound = torch.full((self.batch, places), token, dtype=torch.long, device="cpu")
            return torch.cat((sound, self._ones("cpu", self.seq)), dim=1).to(device)
        end = getattr(self.config, "eos_token_id", None)
        if self.task.name != "sequence-classification" or not self._has_encoder:
            end = None
        if not isinstance(end, int):
            return self._ones(device, self.seq)
        # As a tokenizer makes them: no padding, and a last token that ends the text, by which an
        # encoder-decoder finds what it classifies.
        special = {end, getattr(self.config, "pad_token_id", None)}
        token = next(one for one in range(3) if one not in special)
        ids = torch.full((self.batch, self.seq), token, dtype=torch.long, device="cpu")
        ids[:, -1] = end
        return ids.to(device)

    def _make_labels(self, device: Any) -> Batch:
        """Make the labels of the task: (B,) zeros for classes, else (B, labels) ones."""
        task, count = self.task, self.task.labelled
        training = self.use is Use.TRAINING
        if training and task.of_sound and self.has_tokens and not self._has_encoder:
            # A decoder that hears has a label for each token, those of sound included.
            return {"labels": self._ones(device, self.whole)}
        if count == 0:
            size = {"dtype": torch.long, "device": device}
            return {name: torch.zeros(self.batch, **size) for name in task.labels}
        return {name: self._ones(device, count or self.seq) for name in task.labels}

    def _make_mask(self, device: Any) -> torch.Tensor:
        """Make the attention mask; prompts are padded at their beginning."""
        mask = self._ones(device, self.whole)
        if self.use is not Use.PROMPTS:
            mask[:, -1:].zero_()
        elif self.padding:
            mask[:, :1].zero_()
        return mask

    def _make_media(self, device: Any) -> Batch:
        """Make the images or audio of a batch; empty if the model takes none."""
        if self.has_audio:
            return self.recordings.make(self.batch, self.seq, device)
        if not self.has_images:
            return {}
        vision = getattr(self.config, "vision_config", None) or self.config
        if "spatial_shapes" in self.names:
            # Lists of patches, as SigLIP 2 takes them: (B, patches, C * size * size).
            count, size = int(vision.num_patches), int(vision.patch_size)
            width, side = int(vision.num_channels) * size * size, int(count**0.5)
            grid = {"dtype": torch.long, "device": device}
            return {
                "pixel_values": self._make_pixels(device, count, width),
                "pixel_attention_mask": self._ones(device, count),
                "spatial_shapes": torch.full((self.batch, 2), side, **grid),
            }
        size = getattr(vision, "image_size", None) or 224
        sides = size if isinstance(size, list | tuple) else (size, size)
        channels = getattr(vision, "num_channels", None) or 3
        return {"pixel_values": self._make_pixels(device, channels, *sides)}

    def _make_pixels(self, device: Any, *shape: int) -> torch.Tensor:
        return torch.zeros(self.batch, *shape, dtype=self.images, device=device)

    def _ones(self, device: Any, *shape: Any) -> torch.Tensor:
        return torch.ones(self.batch, *shape, dtype=torch.long, device=device)


_MEDIA = frozenset(("pixel_values", "input_features", "input_values"))
_NEED_MEDIA = ("vilt", "voxtral_realtime")
"""Models that refuse text alone even for the tasks of text."""
_TOKENS_OR_SOUND = ("pop2piano",)
"""Models that take either tokens or sound."""


def read_specs(specs: tuple[str, ...]) -> Callable[[Any], Batch]:
    """Return a function that makes the batches described by the plan's ``inputs``."""
    parsed = [parse_input(spec) for spec in specs]

    def make(device: Any) -> Batch:
        return {
            name: torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
            for name, dtype, shape in parsed
        }

    return make


def check(model: torch.nn.Module, batch: Batch) -> None:
    """Raise UsageError if the model's forward does not accept a batch's names.

    Raises:
        UsageError: with Python's own words, and the arguments of the forward.
    """
    try:
        takes = inspect.signature(without_adapters(model).forward)
    except (TypeError, ValueError):
        return
    try:
        takes.bind_partial(**batch)
        takes.bind(**batch)
    except TypeError as error:
        named = ", ".join(takes.parameters) or "nothing"
        raise UsageError(
            f"{type(model).__name__}.forward() {error}: it takes {named}. Describe its inputs "
            f"with --input, such as --input x=float32[8,3,224,224]."
        ) from None


def without_adapters(model: torch.nn.Module) -> torch.nn.Module:
    """Return the base model inside peft's adapters, or the model itself."""
    base = getattr(model, "get_base_model", None)
    found: torch.nn.Module = model if base is None else base()
    return found
