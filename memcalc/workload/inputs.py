"""Synthetic batches: what a data loader would hand this model, in shape and type.

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
    """What batches are for."""

    TRAINING = "training"
    FORWARD = "forward"
    """One pass, without labels."""
    PROMPTS = "prompts"
    """To generate from."""


class Inputs:
    """Makes the batches of one model; ``seq`` is the length that was settled on."""

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
        """Settle the batches of a model on any device.

        ``seq``: tokens per sample; ``None``: 512, or the model's longest when that is shorter.
        ``padding``: pass an attention mask whose last position is padding.
        ``images``: their type.
        """
        self.model = model
        self.images = images
        self.use = use
        self.task = task
        self.batch = batch
        self.padding = padding
        self.config: Any = getattr(model, "config", None)
        kind = str(getattr(self.config, "model_type", ""))
        self.names = frozenset(inspect.signature(without_adapters(model).forward).parameters)
        self.has_tokens = "input_ids" in self.names and kind not in _HEAR_ALONE
        media = [name for name in _MEDIA if name in self.names]
        self.text_only = (
            self.has_tokens and bool(media) and task.of_text and kind not in _NEED_MEDIA
        )
        """The model also takes images or sound, and trains on text without them."""
        self.recordings = Recordings(model, self.names)
        """Of which some models take a place among their tokens for each piece."""
        written: dict[str, Any] = getattr(self.config, "to_dict", dict)()
        self.lengths = lengths(written)
        refusal = self.lengths.refusal(type(model).__name__, seq)
        if refusal is not None:
            raise SettingError("seq", refusal)
        self.seq = self.lengths.exact or seq or self.lengths.default

    def make_room(self, tokens: int) -> None:
        """See that the model takes its prompt and so many tokens more.

        Raises:
            UsageError: its positions end before.
        """
        longest = self.lengths.longest
        if longest is None:
            return
        whole = tokens - 1 if self.config.is_encoder_decoder else self.seq + tokens - 1
        if whole > longest:
            most = longest - whole + tokens
            name = type(self.model).__name__
            raise SettingError(
                "generate",
                f"{name} has {longest} positions, and {tokens} tokens after a prompt of "
                f"{self.seq} need {whole}: "
                + (f"type --generate {most} or less." if most > 0 else "shorten --seq."),
            )

    def resized(self, batch: int, seq: int | None) -> Inputs:
        """Batches of another size."""
        return Inputs(
            self.model,
            self.task,
            batch=batch,
            seq=seq,
            padding=self.padding,
            use=self.use,
            images=self.images,
        )

    def make(self, device: Any) -> Batch:
        """One batch on the device, filled with valid values where they matter."""
        names, task = self.names, self.task
        batch: Batch = {}
        if not self.text_only:
            batch.update(self._media(device))
        if self.has_tokens:
            batch["input_ids"] = self._tokens(device)
            if "attention_mask" in names and (self.padding or self.use is Use.PROMPTS):
                batch["attention_mask"] = self._mask(device)
        if self.use is not Use.TRAINING:
            return {**batch, **self._decoded(device)}
        if "return_loss" in names and "labels" not in names:
            batch["return_loss"] = True  # type: ignore[assignment]
        if task.always_labelled or "labels" in names:
            batch.update(self._labels(device))
        return batch

    @property
    def goes_by_tokens(self) -> bool:
        """Batches of fewer tokens per sample are smaller; of more there may be none."""
        if self.has_tokens:
            return True
        other = self.resized(self.batch, self.seq - 1 or 2)
        return _sizes(other.make("meta")) != _sizes(self.make("meta"))

    @property
    def hears(self) -> bool:
        """Recordings are in its batches."""
        alone = "input_ids" not in self.names or self.recordings.tokens > 0
        given = "input_features" in self.names or ("input_values" in self.names and alone)
        return given and not self.text_only

    @property
    def sees(self) -> bool:
        """Images are in its batches."""
        return "pixel_values" in self.names and not self.text_only

    @property
    def whole(self) -> Any:
        """Tokens of a sample, those where sound is put among them."""
        return self.seq if self.text_only else self.recordings.tokens + self.seq

    def _tokens(self, device: Any) -> torch.Tensor:
        """(B, S), or (B, S, codebooks); where sound is put they say so."""
        places = self.whole - self.seq
        books = audio.codebooks(self.config)
        if books is not None:
            return torch.ones(self.batch, self.seq, books, dtype=torch.long, device=device)
        token = self.recordings.spoken
        if not places or token is None:
            end = self._end
            return self._ids(device, self.seq) if end is None else self._ended(end, device)
        # Made on the host, as by a collator: what stands where is then known on the device.
        heard = torch.full((self.batch, places), token, dtype=torch.long, device="cpu")
        return torch.cat((heard, self._ids("cpu", self.seq)), dim=1).to(device)

    @property
    def _end(self) -> int | None:
        """Token by which an encoder-decoder finds what it classifies; ``None``: it does not."""
        classifies = self.task.name == "sequence-classification"
        if not classifies or not getattr(self.config, "is_encoder_decoder", False):
            return None
        end = getattr(self.config, "eos_token_id", None)
        return end if isinstance(end, int) else None

    def _ended(self, end: int, device: Any) -> torch.Tensor:
        """(B, S) as a tokenizer hands it over: no padding, and a last token that ends the text."""
        special = {end, getattr(self.config, "pad_token_id", None)}
        token = next(one for one in range(3) if one not in special)
        ids = torch.full((self.batch, self.seq), token, dtype=torch.long, device="cpu")
        ids[:, -1] = end
        return ids.to(device)

    def _labels(self, device: Any) -> Batch:
        """Of the task; one for each token where sound stands among the tokens of a decoder."""
        speaks = audio.decoded(self.config, self.batch, device)
        if speaks is not None and "decoder_input_ids" in self.names:
            return speaks
        encodes = getattr(self.config, "is_encoder_decoder", False)
        if self.task.of_sound and self.has_tokens and not encodes:
            return {"labels": self._ids(device, self.whole)}
        return self._of_task(device)

    def _of_task(self, device: Any) -> Batch:
        """Labels as the task has them: (B,) zeros for classes, else (B, labels) ones."""
        count = self.seq if self.task.labelled is None else self.task.labelled
        if count:
            return {name: self._ids(device, count) for name in self.task.labels}
        size = {"dtype": torch.long, "device": device}
        return {name: torch.zeros(self.batch, **size) for name in self.task.labels}

    def _mask(self, device: Any) -> torch.Tensor:
        """Prompts are padded at their beginning, and a tokenizer gives a mask with them always."""
        mask = self._ids(device, self.whole)
        if self.use is not Use.PROMPTS:
            mask[:, -1:].zero_()
        elif self.padding:
            mask[:, :1].zero_()
        return mask

    def _decoded(self, device: Any) -> Batch:
        """What the decoder of an encoder-decoder reads in one pass: as many tokens as labels."""
        if self.use is Use.PROMPTS or not getattr(self.config, "is_encoder_decoder", False):
            return {}
        if "decoder_input_ids" not in self.names or "labels" not in self.names:
            return {}
        return {"decoder_input_ids": self._of_task(device)["labels"]}

    def _media(self, device: Any) -> Batch:
        names = self.names
        if self.hears:
            return self.recordings.make(self.batch, self.seq, device)
        if self.sees and "spatial_shapes" in names:
            return self._patches(device)
        if self.sees:
            shape = (self.batch, *self._image())
            return {"pixel_values": torch.zeros(shape, dtype=self.images, device=device)}
        return {}

    def _patches(self, device: Any) -> Batch:
        """Images as lists of patches, as SigLIP 2 takes them: (B, patches, C * size * size)."""
        vision = getattr(self.config, "vision_config", None) or self.config
        count, size = int(vision.num_patches), int(vision.patch_size)
        side = int(count**0.5)
        width = int(vision.num_channels) * size * size
        return {
            "pixel_values": torch.zeros(self.batch, count, width, dtype=self.images, device=device),
            "pixel_attention_mask": self._ids(device, count),
            "spatial_shapes": torch.full((self.batch, 2), side, dtype=torch.long, device=device),
        }

    def _ids(self, device: Any, length: int) -> torch.Tensor:
        return torch.ones(self.batch, length, dtype=torch.long, device=device)

    def _image(self) -> tuple[int, int, int]:
        config = getattr(self.config, "vision_config", None) or self.config
        size = getattr(config, "image_size", None) or 224
        height, width = size if isinstance(size, list | tuple) else (size, size)
        return getattr(config, "num_channels", None) or 3, height, width


_MEDIA = ("pixel_values", "input_features", "input_values")
_NEED_MEDIA = ("vilt", "voxtral_realtime")
"""Models that refuse text alone even for the tasks of text."""
_HEAR_ALONE = ("pop2piano",)
"""Models that take either tokens or sound."""


def described(specs: tuple[str, ...]) -> Callable[[Any], Batch]:
    """Batches of a model whose inputs the user described."""
    parsed = [parse_input(spec) for spec in specs]

    def make(device: Any) -> Batch:
        return {
            name: torch.zeros(shape, dtype=getattr(torch, dtype), device=device)
            for name, dtype, shape in parsed
        }

    return make


def check(model: torch.nn.Module, batch: Batch) -> None:
    """Refuse batches that the model's forward does not take.

    Raises:
        UsageError: with Python's own words, and what the forward takes.
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
    """The model that adapters are around; the model itself where there are none."""
    base = getattr(model, "get_base_model", None)
    found: torch.nn.Module = model if base is None else base()
    return found


def _sizes(batch: Batch) -> dict[str, Any]:
    return {name: getattr(value, "shape", value) for name, value in batch.items()}
