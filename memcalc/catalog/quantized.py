"""Quantized checkpoints: dequantized, estimated as they are, or refused.

Source: transformers 5.23, ``is_trainable`` and ``validate_environment`` of each method's
``HfQuantizer``.
"""

from collections.abc import Mapping
from typing import Any

NONE = "none"
"""The value of ``Plan.quant`` that dequantizes a quantized checkpoint while loading."""
TORCHAO = {"torchao-int8": "Int8WeightOnlyConfig", "torchao-float8": "Float8WeightOnlyConfig"}
"""Which class of ``torchao.quantization`` a value of ``Plan.quant`` has transformers use."""
BITSANDBYTES: dict[str, dict[str, Any]] = {
    "nf4": {"load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
    "nf4-dq": {
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_use_double_quant": True,
    },
    "fp4": {"load_in_4bit": True, "bnb_4bit_quant_type": "fp4"},
    "int8": {"load_in_8bit": True},
}
"""What a value of ``Plan.quant`` has ``transformers.BitsAndBytesConfig`` told."""
_OF_4_BIT = ("load_in_4bit", "bnb_4bit_use_double_quant")
_EXTENSION = (
    "its layers run kernels of gptqmodel that are compiled on the GPU's machine, which memcalc "
    "cannot run: type the name of the model that it was made "
    "from, with --quant nf4 for one in 4 bit"
)
_FBGEMM = (
    "its products are compiled kernels of fbgemm_gpu, which memcalc cannot run, and "
    "transformers does not train on them"
)
_REASONS = {
    "gptq": _EXTENSION,
    "awq": _EXTENSION,
    "fbgemm_fp8": _FBGEMM,
    "torchao": "only weight-only int8 and float8 by rows are run, of linear layers alone",
}
_KERNELS = "its products are Triton kernels of the kernels hub, which are not simulated"
_DEQUANTIZED = {
    "mxfp4": "Mxfp4Config",
    "fp8": "FineGrainedFP8Config",
    "mxfp8": "FineGrainedFP8Config",
    "compressed-tensors": "CompressedTensorsConfig",
}
"""Methods that transformers dequantizes, by ``dequantize=True`` of this class."""
_FP8 = (8, 9)
"""The first compute capability with fp8 arithmetic; transformers dequantizes fp8 on others."""
_AS_BF16 = (
    "for a run on dequantized weights, remove quantization_config from a copy of its config.json"
)


def scheme_of(settings: Mapping[str, Any]) -> str | None:
    """Find the value of ``Plan.quant`` that a checkpoint was made with, or None."""
    if settings.get("quant_method") == "torchao":
        return _of_torchao(settings)
    if settings.get("load_in_8bit"):
        return "int8"
    kind = settings.get("bnb_4bit_quant_type", "fp4")
    if not settings.get("load_in_4bit") or kind not in ("fp4", "nf4"):
        return None
    told = {key: settings[key] for key in _OF_4_BIT if settings.get(key)}
    told["bnb_4bit_quant_type"] = kind
    return next((name for name, asked in BITSANDBYTES.items() if asked == told), None)


def scheme_in(config: Mapping[str, Any] | None) -> str | None:
    """Find the same in a model's config; None also if it is not quantized."""
    settings = _settings(config or {})
    return scheme_of(settings) if settings is not None else None


def settings_in(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the settings of bitsandbytes that a checkpoint was made with, or None."""
    settings = _settings(config or {})
    known = settings is not None and _method(settings) == "bitsandbytes" and scheme_of(settings)
    return settings if known else None


def _of_torchao(settings: Mapping[str, Any]) -> str | None:
    kind = settings.get("quant_type")
    made = kind.get("default") if isinstance(kind, Mapping) else None
    if not isinstance(made, Mapping) or settings.get("include_input_output_embeddings"):
        return None
    data = made.get("_data")
    rows = data.get("granularity") if isinstance(data, Mapping) else None
    if not isinstance(rows, Mapping) or rows.get("_type") != "PerRow":
        return None
    return next((name for name, made_by in TORCHAO.items() if made_by == made.get("_type")), None)


def torchao_refusal(scheme: str, *, trains: bool, several: bool) -> str | None:
    """Return a reason if a base cannot be loaded in a scheme of torchao, or None."""
    if scheme not in TORCHAO and not trains:
        return (
            "torchao packs and multiplies 4-bit weights by compiled kernels (mslk), which memcalc "
            "cannot run; type --quant nf4"
        )
    if scheme not in TORCHAO:
        return (
            "adapters are not trained on torchao's 4 bit: peft's TorchaoLoraLinear takes weights "
            "in 8 bit only, and transformers calls no others trainable; type --quant nf4"
        )
    if several:
        return "a base in torchao's tensors is supported on one GPU only: leave --devices out"
    return None


def refusal(
    config: Mapping[str, Any], name: str, quant: str | None, capability: tuple[int, int] | None
) -> str | None:
    """Return a sentence if memcalc cannot estimate a checkpoint in its stored form, or None."""
    settings = _settings(config)
    if settings is None:
        return None
    known = scheme_of(settings)
    if known is not None:
        way = f"leave --quant {quant} out" if quant is not None else f"give --quant {known}"
        return None if known == quant else f"The checkpoint of {name} is in {known} already: {way}."
    method = _method(settings)
    said = f"The checkpoint of {name} is in {method}"
    if method in _DEQUANTIZED and quant not in (None, NONE):
        return (
            f"{said}, and transformers does not quantize it a second time: leave --quant "
            f"{quant} out, or {_AS_BF16.removeprefix('for a run on dequantized weights, ')}."
        )
    if method not in _DEQUANTIZED:
        reason = _REASONS.get(method, f"memcalc does not run {method}")
        return f"{said}, and {reason}; {_AS_BF16}."
    # transformers dequantizes fp8 itself where the GPU has none. MXFP4 is not trained as it is, and
    # without the kernels package not run as it is.
    without = capability is None or capability < _FP8
    if quant == NONE or method == "mxfp4" or (method in ("fp8", "mxfp8") and without):
        return None
    why = (
        "it is decompressed in the first forward, which is not simulated"
        if method == "compressed-tensors"
        else f"this GPU keeps it so: {_KERNELS}"
    )
    return (
        f"{said}, and {why}; --quant {NONE} dequantizes it while loading "
        f"({_DEQUANTIZED[method]}(dequantize=True))."
    )


def notes(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the notes of an answer about a quantized checkpoint."""
    settings, known = _settings(config or {}), scheme_in(config)
    if known in TORCHAO:
        return (f"the checkpoint is in {known} already, and is loaded here as one that is not yet",)
    if known is not None:
        return (
            f"the checkpoint is in {known} already: its files hold what transformers' "
            "save_pretrained writes of it, and threads read all of it before the first weight is "
            "put together (what other orders change at load is under 512 bytes a weight)",
        )
    if settings is None or _method(settings) not in _DEQUANTIZED:
        return ()
    method = _method(settings)
    return (
        f"the checkpoint is in {method}, dequantized to the plan's precision in host memory "
        f"({_DEQUANTIZED[method]}(dequantize=True))",
    )


def computed_in(settings: Mapping[str, Any]) -> str | None:
    """Return the dtype that 4-bit layers of a checkpoint compute in; None for 8-bit layers."""
    if settings.get("load_in_8bit"):
        return None
    return str(settings.get("bnb_4bit_compute_dtype") or "float32").removeprefix("torch.")


def unsharded(settings: Mapping[str, Any]) -> str | None:
    """Return a reason if FSDP does not divide a checkpoint's 4-bit weights, or None."""
    stored = str(settings.get("bnb_4bit_quant_storage") or "uint8").removeprefix("torch.")
    if stored in ("bfloat16", "float16", "float32"):
        return None
    return (
        f"the checkpoint's weights are stored as {stored}, and FSDP asks for a float type "
        "(bnb_4bit_quant_storage): type the name of the model that it was made from with --quant "
        "nf4, or --parallel ddp"
    )


def uncounted(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return the uncounted memory of loading a checkpoint that is dequantized."""
    settings = _settings(config or {})
    if settings is None or _method(settings) not in _DEQUANTIZED:
        return ()
    return (
        f"a higher loading peak, where a device_map dequantizes {_method(settings)} on the GPU",
    )


def _settings(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Find the settings of quantization, also in a text part (``get_hf_quantizer``)."""
    for part in (config, config.get("text_config")):
        found = part.get("quantization_config") if isinstance(part, Mapping) else None
        if isinstance(found, Mapping):
            return found
    return None


def _method(settings: Mapping[str, Any]) -> str:
    return str(settings.get("quant_method") or "bitsandbytes")
