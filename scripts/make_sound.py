"""Write configs/sound.json: what each feature extractor of transformers makes of ten seconds.

Run with the newest transformers that memcalc supports, and with torchaudio, which some extractors
need; for all model types, or for those that are named. It takes some minutes. Each extractor is
given silence, with the settings of its processor's class. What it makes is compared with what it
makes of more frequency bins, to know their axis. Models that put sound among the tokens of a text
encode it on the CPU, which says how many tokens it takes.
"""

import inspect
import json
import pathlib
import sys
import warnings
from typing import Any

import numpy as np
import torch
import transformers
from msgspec.structs import replace
from transformers.models.auto import feature_extraction_auto, processing_auto

from memcalc.catalog import architectures, audio, models
from memcalc.catalog.audio import AudioTensor, Sound
from memcalc.files.artifact import encode
from memcalc.workload import tasks
from memcalc.workload.inputs import Inputs
from memcalc.workload.model import build

PATH = pathlib.Path(__file__).parent.parent / "configs" / "sound.json"
SECONDS = 10
NAMES = ("input_features", "input_values", "is_longer")
MASKS = ("attention_mask", "input_features_mask", "padding_mask")
BATCH = 2
TASK = "speech-seq2seq"
"""For which sound is put among tokens; for others such models are trained on text alone."""


def named(names: dict[str, str], model_type: str) -> Any:
    """A class of one of transformers' tables; ``None``: there is none, or it needs a package."""
    try:
        return getattr(transformers, names[model_type])
    except (KeyError, ImportError):
        return None


def made(extractor: Any, settings: dict[str, Any]) -> dict[str, torch.Tensor]:
    """What it makes of silence, as tensors of one recording."""
    takes = inspect.signature(extractor.__call__).parameters
    every = {**settings, "sampling_rate": extractor.sampling_rate, "return_tensors": "pt"}
    given = {name: value for name, value in every.items() if name in takes}
    silence = np.zeros(extractor.sampling_rate * SECONDS, dtype=np.float32)
    out = dict(extractor([silence], **given).items())
    return {
        name: torch.as_tensor(out[name])
        for name in (*NAMES, *MASKS)
        if name in out and not isinstance(out[name], list)
    }


def axis_of_bins(kind: Any, settings: dict[str, Any], name: str, shape: Any) -> int | None:
    """The axis of as many bins as are asked for, without the batch's."""
    for setting in ("feature_size", "num_mel_bins"):
        default = inspect.signature(kind.__init__).parameters.get(setting)
        if default is None or default.default in (None, 1, inspect.Parameter.empty):
            continue
        try:
            wider = made(kind(**{setting: 2 * default.default}), settings)[name].shape
        except Exception:
            continue
        longer = [axis for axis, (a, b) in enumerate(zip(shape, wider, strict=True)) if a != b]
        # Several frames side by side are not what a config calls its bins.
        if len(longer) == 1 and shape[longer[0]] == default.default:
            return longer[0] - 1
    return None


def row(model_type: str) -> Sound | None:
    """What the extractor of a model type makes; ``None``: it has none that runs here."""
    kind = named(feature_extraction_auto.FEATURE_EXTRACTOR_MAPPING_NAMES, model_type)
    if kind is None:
        return None
    processor = named(processing_auto.PROCESSOR_MAPPING_NAMES, model_type)
    settings = dict(vars(processor).get("audio_kwargs") or {}) if processor is not None else {}
    settings.pop("return_tensors", None)
    try:
        rate = {name: settings[name] for name in ("sampling_rate",) if name in settings}
        extractor = kind(**rate)
        tensors = made(extractor, settings)
    except Exception as error:
        print(f"{model_type}: {type(error).__name__}: {' '.join(str(error).split())[:120]}")
        return None
    inputs = {}
    for name, tensor in tensors.items():
        shape = tuple(tensor.shape[1:])
        fixed = getattr(extractor, "nb_max_frames", None)
        inputs[name] = AudioTensor(
            shape=shape,
            dtype=str(tensor.dtype).removeprefix("torch."),
            mask=name in MASKS,
            bins=None if name in MASKS else axis_of_bins(kind, settings, name, tensor.shape),
            window=shape.index(fixed) if fixed in shape else None,
        )
    if not inputs.keys() - set(MASKS):
        return None
    # Codes of a codec: one for so many samples.
    coded = "delay_pattern" in settings
    hop = extractor.hop_length if coded else 1
    return Sound(inputs=inputs, tokens=inputs["padding_mask"].shape[-1] // hop if coded else None)


def tokens(model_type: str) -> int | None:
    """How many tokens a model's own code makes of the sound of one sample."""
    if TASK not in architectures.heads(model_type):
        return None
    source = models.ModelSource(name=model_type, origin="local", config={"model_type": model_type})
    with torch.device("meta"):
        model = build(source, tasks.choose(source, TASK))
    inner: Any = getattr(model, "model", None)
    encode_sound: Any = getattr(inner, "get_audio_features", None)
    inputs = Inputs(model, tasks.find(TASK), batch=BATCH, seq=8, padding=True)
    if encode_sound is None or inputs.recordings.follows:
        return audio.table()[model_type].tokens
    # Memory that nobody touches costs nothing, and only the encoder's is.
    model.to_empty(device="cpu")
    try:
        with torch.no_grad():
            out: Any = encode_sound(**inputs.recordings.make(BATCH, 8, "cpu"))
    except Exception as error:
        print(f"{model_type} encodes nothing: {' '.join(str(error).split())[:120]}")
        return None
    return sum(part.shape[:-1].numel() for part in getattr(out, "pooler_output", out)) // BATCH


def write(rows: dict[str, Sound]) -> None:
    lines = [f"  {json.dumps(k)}: {json.dumps(encode(v))}" for k, v in sorted(rows.items())]
    head = f'{{"transformers": "{transformers.__version__}", "seconds": {SECONDS}, "types": {{\n'
    PATH.write_text(head + ",\n".join(lines) + "\n}}\n")


def main() -> None:
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    wanted = sys.argv[1:] or list(architectures.table())
    rows = dict(audio.table()) if sys.argv[1:] else {}
    new = {name: found for name in wanted if (found := row(name)) is not None}
    rows.update(new)
    write(rows)
    audio.table.cache_clear()
    for name, found in new.items():
        rows[name] = replace(found, tokens=tokens(name))
    write(rows)
    print(f"{len(rows)} model types -> {PATH}")


if __name__ == "__main__":
    main()
