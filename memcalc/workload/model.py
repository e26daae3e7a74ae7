"""Builds the model of a name and a task; it runs no code from a model's repository.

The model has its published weights only if they are requested, and only from safetensors, never
from pickles.
"""

import contextlib
import importlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from memcalc.catalog import models
from memcalc.catalog.models import ModelSource
from memcalc.errors import EstimateError, MeasureError, MemcalcError, UsageError
from memcalc.files.offline import is_offline
from memcalc.imports import is_named, line, load
from memcalc.records.names import FLASH_ATTN
from memcalc.records.plan import Plan
from memcalc.records.values import adapter
from memcalc.workload import tasks
from memcalc.workload.job import PRECISIONS
from memcalc.workload.tasks import Head, Task


def build(
    source: ModelSource,
    head: Head,
    *,
    attention: str | None = None,
    dtype: torch.dtype = torch.float32,
    as_loaded: bool = False,
) -> torch.nn.Module:
    """Build a model from its config or callable, with random weights, on the default device.

    Args:
        source: the model's config, or a callable.
        head: the class for its task.
        attention: the implementation that transformers uses; None: its own choice.
        dtype: the dtype that the model is cast to; a callable's is cast to 16-bit types alone.
        as_loaded: modules that set a dtype keep it, as when transformers loads a checkpoint.

    Raises:
        UsageError: transformers or the callable cannot build it, with their reason.
    """
    if source.factory is not None:
        own = _call_factory(source.factory)
        # ``Module.to(dtype)`` would cast complex parameters as well, and lose half of each.
        casts = {torch.bfloat16: own.bfloat16, torch.float16: own.half}
        return casts[dtype]() if dtype in casts else own
    config = configure(source, head, attention=attention)
    transformers = importlib.import_module("transformers")
    default = torch.get_default_dtype()
    try:
        torch.set_default_dtype(dtype if as_loaded else default)
        cls = getattr(transformers, head.class_name)
        model: torch.nn.Module = cls(select_text_part(config, cls))
    except ImportError as error:
        raise UsageError(f"{head.class_name} needs a package: {line(error)}.") from None
    except Exception as error:
        raise UsageError(
            f"transformers cannot build {head.class_name} of {source.name}: {line(error)}."
        ) from None
    finally:
        torch.set_default_dtype(default)
    set_missing_tokens(model)
    _untie_head(model, source.config or {})
    if torch.empty(0).is_meta:
        _move_to_meta(model)
    return model if as_loaded else model.to(dtype)


def _untie_head(model: Any, config: Mapping[str, Any]) -> None:
    """Separate the output head from the embedding if the config says they are not tied.

    T5's class of configs in transformers 5 says otherwise, and ties them until ``from_pretrained``
    finds both in the checkpoint: then it drops this pair alone from ``all_tied_weights_keys``.
    """
    tied = getattr(model, "all_tied_weights_keys", None)
    if config.get("tie_word_embeddings") is not False or not tied:
        return
    head = model.get_output_embeddings()
    if head is not None and head.weight is model.get_input_embeddings().weight:
        name = next(name for name, one in model.named_modules() if one is head)
        del tied[f"{name}.weight"]
        head.weight = torch.nn.Parameter(torch.empty_like(head.weight))


def select_text_part(config: Any, cls: Any) -> Any:
    """Return the sub-config of a composite config that a text model's class takes.

    Source: transformers 5.23, ``auto_factory.py``, ``_BaseAutoModelClass.from_config``.
    """
    parts = getattr(config, "sub_configs", None) or {}
    if parts.get("text_config") == cls.config_class and type(config) is not cls.config_class:
        return find_text_config(config)
    return config


def find_text_config(config: Any) -> Any:
    """Return a config's text sub-config, or the config itself."""
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _move_to_meta(model: torch.nn.Module) -> None:
    """Move parameters to meta that ``torch.Tensor(n)`` made on the CPU.

    Speech models mask frames by one (``masked_spec_embed``).
    """
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and not parameter.is_meta:
                meta = parameter.detach().to("meta")
                module._parameters[name] = torch.nn.Parameter(meta, parameter.requires_grad)


def set_missing_tokens(model: torch.nn.Module) -> None:
    """Set token IDs that training needs and default configs lack; this changes no memory."""
    config: Any = getattr(model, "config", None)
    if config is None:
        return
    if config.is_encoder_decoder and getattr(config, "decoder_start_token_id", None) is None:
        config.decoder_start_token_id = getattr(config, "bos_token_id", None) or 0
    if config.is_encoder_decoder and getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = 0
    if config.model_type == "xmod" and config.default_language is None:
        config.default_language = config.languages[0]


def attention_setting(plan: Plan) -> str | None:
    """Return the ``attn_implementation`` to ask of transformers, or None for its own choice."""
    return plan.attention if plan.attention in ("eager", FLASH_ATTN) else None


def configure(source: ModelSource, head: Head, *, attention: str | None = None) -> Any:
    """Make transformers' config object for a model and task.

    Raises:
        UsageError: transformers refuses the config.
    """
    assert source.config is not None
    settings = {key: value for key, value in source.config.items() if key not in _NOT_OURS}
    if head.task.num_labels is not None:
        settings["num_labels"] = head.task.num_labels
    transformers = importlib.import_module("transformers")
    try:
        config = getattr(transformers, head.config_class).from_dict(settings)
    except Exception as error:
        raise UsageError(
            f"transformers refuses the config of {source.name}: {line(error)}."
        ) from None
    if head.task.by_last_token:
        for part in (config, find_text_config(config)):
            if getattr(part, "pad_token_id", None) is None:
                part.pad_token_id = 0
    if attention is not None:
        # Private: transformers 5.23, configuration_utils.py; parts of a config follow it.
        config._attn_implementation = attention
    return config


_NOT_OURS = (
    "model_type",
    "architectures",
    "auto_map",
    "quantization_config",
    "dtype",
    "torch_dtype",
)


@contextlib.contextmanager
def report_by_name(name: str, where: Callable[[], str] = str) -> Iterator[None]:
    """Turn errors of a user's own model inside the block into EstimateError with its name.

    Raises:
        EstimateError: the code inside failed.
    """
    try:
        yield
    except MemcalcError:
        raise
    except Exception as error:
        if not is_named(name):
            raise
        reason = f"{line(error)} ({type(error).__name__}{where()})"
        raise EstimateError(f"{name}: {reason}.") from error


def _call_factory(factory: str) -> torch.nn.Module:
    callable_ = load(factory)
    try:
        made = callable_ if isinstance(callable_, torch.nn.Module) else callable_()
    except Exception as error:
        raise UsageError(f"{factory} fails: {type(error).__name__}: {line(error)}.") from None
    if not isinstance(made, torch.nn.Module):
        raise UsageError(f"{factory} returned {type(made).__name__}, not an nn.Module.")
    return made


def with_weights(plan: Plan) -> tuple[torch.nn.Module, Task]:
    """Load a plan's model with its real weights on the CPU; return it with its task.

    A callable makes its own weights, which are kept.

    Raises:
        MeasureError: there are no safetensors, or they do not fit the model.
    """
    source = models.find(plan.model)
    head = tasks.choose(source, plan.task)
    dtype = PRECISIONS[plan.precision].weights
    if source.factory is not None:
        return build(source, head, dtype=dtype), head.task
    config = configure(source, head, attention=attention_setting(plan))
    cls = getattr(importlib.import_module("transformers"), head.class_name)
    path = Path(source.name).expanduser()
    local = path.parent if path.suffix == ".json" else path
    place = str(local) if source.origin == "local" else source.tuned or source.name
    try:
        model = cls.from_pretrained(
            place,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            trust_remote_code=False,
            local_files_only=is_offline(),
        )
    except Exception as error:
        # transformers, huggingface_hub and safetensors each have errors of their own.
        reason = " ".join(str(error).split())[:200]
        raise MeasureError(
            f"The weights of {place} cannot be loaded: {reason} "
            "Leave --weights out to measure with random weights: memory is the same."
        ) from None
    return model, head.task


def attach(model: torch.nn.Module, text: str, *, autocast: bool) -> torch.nn.Module:
    """Wrap a model in the LoRA adapters that ``Plan.lora`` describes.

    ``autocast``: peft keeps adapters of 16-bit weights in fp32 (``autocast_adapter_dtype``).

    Raises:
        UsageError: peft cannot adapt this model.
    """
    import peft

    wanted = adapter(text)
    config = peft.LoraConfig(
        r=wanted.r,
        lora_alpha=wanted.alpha,
        lora_dropout=wanted.dropout,
        target_modules=wanted.target if isinstance(wanted.target, str) else list(wanted.target),
    )
    on_meta = all(parameter.is_meta for parameter in model.parameters())
    try:
        # peft makes adapters on the CPU and moves them to the device of the layer they adapt; on
        # meta they are not filled first, which takes seconds for a model of 7B.
        with torch.device("meta") if on_meta else contextlib.nullcontext():
            wrapped: Any = peft.get_peft_model(model, config, autocast_adapter_dtype=autocast)
    except ValueError as error:
        raise UsageError(f"peft cannot adapt {type(model).__name__}: {error}.") from None
    if on_meta and not autocast:
        _cast_adapters(wrapped)
    return wrapped  # type: ignore[no-any-return]


def _cast_adapters(model: torch.nn.Module) -> None:
    """Cast adapters to the dtype of the layers they adapt, which peft skips on meta."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for layer in model.modules():
        if isinstance(layer, BaseTunerLayer):
            dtype = next(layer.get_base_layer().parameters()).dtype
            for parameter in layer.parameters():
                if parameter.requires_grad:
                    parameter.data = parameter.data.to(dtype)
