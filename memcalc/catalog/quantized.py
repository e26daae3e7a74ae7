"""Decides whether a quantized checkpoint is dequantized, estimated or refused.

Source: transformers 5.23, ``is_trainable`` and ``validate_environment`` of each method's
``HfQuantizer``.
"""

from collections.abc import Mapping
from typing import Any

from memcalc.catalog.models import ModelSource
from memcalc.errors import SettingError
from memcalc.files import extras
from memcalc.records.names import SHARDED
from memcalc.records.plan import Plan

NONE = "none"
"""The value of ``Plan.quant`` that dequantizes a quantized checkpoint while loading."""
TORCHAO = {"torchao-int8": "Int8WeightOnlyConfig", "torchao-float8": "Float8WeightOnlyConfig"}
"""The class of ``torchao.quantization`` for each value of ``Plan.quant``."""
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
"""The arguments of ``transformers.BitsAndBytesConfig`` for each value of ``Plan.quant``."""
_KEYS_OF_4_BIT = ("load_in_4bit", "bnb_4bit_use_double_quant")
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
"""The lowest compute capability with fp8 arithmetic; transformers dequantizes fp8 below it."""
_AS_BF16 = (
    "for a run on dequantized weights, remove quantization_config from a copy of its config.json"
)


def read_scheme(settings: Mapping[str, Any]) -> str | None:
    """Return the value of ``Plan.quant`` that matches a ``quantization_config``, or None."""
    if settings.get("quant_method") == "torchao":
        return _read_torchao_scheme(settings)
    if settings.get("load_in_8bit"):
        return "int8"
    kind = settings.get("bnb_4bit_quant_type", "fp4")
    if not settings.get("load_in_4bit") or kind not in ("fp4", "nf4"):
        return None
    given = {key: settings[key] for key in _KEYS_OF_4_BIT if settings.get(key)}
    given["bnb_4bit_quant_type"] = kind
    return next((name for name, wanted in BITSANDBYTES.items() if wanted == given), None)


def find_scheme(config: Mapping[str, Any] | None) -> str | None:
    """Return the value of ``Plan.quant`` that a model's checkpoint was made with, or None."""
    settings = _find_quantization(config or {})
    return read_scheme(settings) if settings is not None else None


def find_bnb_settings(config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the bitsandbytes settings in a model's config, or None for any other config."""
    settings = _find_quantization(config or {})
    known = settings is not None and _method(settings) == "bitsandbytes" and read_scheme(settings)
    return settings if known else None


def _read_torchao_scheme(settings: Mapping[str, Any]) -> str | None:
    """Return the ``Plan.quant`` of a torchao ``quantization_config``, or None."""
    kind = settings.get("quant_type")
    made = kind.get("default") if isinstance(kind, Mapping) else None
    if not isinstance(made, Mapping) or settings.get("include_input_output_embeddings"):
        return None
    data = made.get("_data")
    rows = data.get("granularity") if isinstance(data, Mapping) else None
    if not isinstance(rows, Mapping) or rows.get("_type") != "PerRow":
        return None
    return next((name for name, made_by in TORCHAO.items() if made_by == made.get("_type")), None)


_WHOLE = ("ddp", "zero1")
"""Layouts that leave the weights whole on each GPU."""


def check(
    plan: Plan,
    source: ModelSource,
    layout: str,
    world: int,
    capability: tuple[int, int] | None,
) -> None:
    """Raise SettingError if a plan's base cannot be loaded quantized, or as its checkpoint is.

    ``layout``: the layout over ``world`` processes; ``capability``: that of the GPU, None on a CPU.
    """
    refused = base_refusal(plan, source, layout, world) if plan.scheme is not None else None
    if refused is not None:
        raise SettingError("quant", f"--quant {plan.quant}: {refused}.")
    if plan.scheme is None and "load" in dict(plan.parallel_args):
        raise SettingError(
            "parallel_args",
            "load=cpu is for quantized bases, which are loaded before they are divided; others "
            "never lie whole on a GPU: leave it out, or add quant.",
        )
    already = refusal(source.config or {}, source.name, plan.quant, capability)
    if already is not None:
        raise SettingError("quant", already)
    if plan.bnb_4bit_compute_dtype is not None and find_bnb_settings(source.config):
        why = f"The checkpoint of {source.name} says in what its layers compute: leave it out."
        raise SettingError("bnb_4bit_compute_dtype", why)


def base_refusal(plan: Plan, source: ModelSource, layout: str, world: int) -> str | None:
    """Return why a plan's base model cannot be loaded quantized, or None."""
    if source.factory is not None:
        return f"it is for models that transformers loads, and {source.name} is a callable"
    if plan.scheme is not None and plan.scheme.startswith("torchao-"):
        refused = _torchao_refusal(plan.scheme, trains=not plan.infers, several=world > 1)
        return refused or extras.lacking("it needs", "torchao")
    refused = _layout_refusal(plan, layout) if world > 1 else None
    already = find_bnb_settings(source.config)
    if refused is None and already is not None and layout in SHARDED:
        refused = _fsdp_refusal(already)
    return refused or extras.lacking("it needs", "bitsandbytes")


def _layout_refusal(plan: Plan, layout: str) -> str | None:
    """Return why a layout cannot divide a base of bitsandbytes, or None if it can."""
    if layout in (*_WHOLE, *SHARDED) and (layout in _WHOLE or plan.scheme != "int8"):
        return None
    engine = "DeepSpeed's engine is not simulated over a quantized base"
    reasons = {
        "tp": "transformers spreads no layers of bitsandbytes over tensor-parallel ranks",
        "zero2": engine,
        "zero3": engine,
    }
    if layout in SHARDED:
        return "FSDP has no type for weights in 8 bit: type --quant nf4-dq, or --parallel ddp"
    reason = reasons.get(layout, "a quantized base over such a mesh is not simulated")
    other = "fsdp2 or " if plan.scheme != "int8" else ""
    return f"{reason}: type --parallel {other}ddp"


def _torchao_refusal(scheme: str, *, trains: bool, several: bool) -> str | None:
    """Return why a base cannot be loaded in a scheme of torchao, or None if it can."""
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
    """Return why memcalc cannot estimate a quantized checkpoint in its format, or None."""
    settings = _find_quantization(config)
    if settings is None:
        return None
    known = read_scheme(settings)
    if known is not None:
        way = f"leave --quant {quant} out" if quant is not None else f"give --quant {known}"
        return None if known == quant else f"The checkpoint of {name} is in {known} already: {way}."
    method = _method(settings)
    prefix = f"The checkpoint of {name} is in {method}"
    if method in _DEQUANTIZED and quant not in (None, NONE):
        return (
            f"{prefix}, and transformers does not quantize it a second time: leave --quant "
            f"{quant} out, or {_AS_BF16.removeprefix('for a run on dequantized weights, ')}."
        )
    if method not in _DEQUANTIZED:
        reason = _REASONS.get(method, f"memcalc does not run {method}")
        return f"{prefix}, and {reason}; {_AS_BF16}."
    # transformers dequantizes fp8 itself if the GPU has no fp8. MXFP4 is dequantized for training,
    # and without the kernels package also for inference.
    without = capability is None or capability < _FP8
    if quant == NONE or method == "mxfp4" or (method in ("fp8", "mxfp8") and without):
        return None
    why = (
        "it is decompressed in the first forward, which is not simulated"
        if method == "compressed-tensors"
        else f"this GPU keeps it so: {_KERNELS}"
    )
    return (
        f"{prefix}, and {why}; --quant {NONE} dequantizes it while loading "
        f"({_DEQUANTIZED[method]}(dequantize=True))."
    )


def notes(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return notes on how a quantized checkpoint is estimated; empty for another."""
    settings, known = _find_quantization(config or {}), find_scheme(config)
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


def read_compute_dtype(settings: Mapping[str, Any]) -> str | None:
    """Return the dtype in which 4-bit layers of a checkpoint compute, or None for 8-bit layers."""
    if settings.get("load_in_8bit"):
        return None
    return str(settings.get("bnb_4bit_compute_dtype") or "float32").removeprefix("torch.")


def _fsdp_refusal(settings: Mapping[str, Any]) -> str | None:
    """Return why FSDP cannot divide a checkpoint's 4-bit weights, or None if it can."""
    stored = str(settings.get("bnb_4bit_quant_storage") or "uint8").removeprefix("torch.")
    if stored in ("bfloat16", "float16", "float32"):
        return None
    return (
        f"the checkpoint's weights are stored as {stored}, and FSDP asks for a float type "
        "(bnb_4bit_quant_storage): type the name of the model that it was made from with --quant "
        "nf4, or --parallel ddp"
    )


def uncounted_memory(config: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return phrases for memory that an estimate of a dequantized checkpoint does not count."""
    settings = _find_quantization(config or {})
    if settings is None or _method(settings) not in _DEQUANTIZED:
        return ()
    return (
        f"a higher loading peak, where a device_map dequantizes {_method(settings)} on the GPU",
    )


def _find_quantization(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the ``quantization_config`` of a config or its text part, or None."""
    for part in (config, config.get("text_config")):
        found = part.get("quantization_config") if isinstance(part, Mapping) else None
        if isinstance(found, Mapping):
            return found
    return None


def _method(settings: Mapping[str, Any]) -> str:
    """Return the quantization method's name in a ``quantization_config``."""
    return str(settings.get("quant_method") or "bitsandbytes")
