"""Runs a model without training it: one forward pass, or transformers' own ``generate``.

The same code runs for real and on the simulated GPU. Of N tokens that are generated, the prompt's
pass (prefill) gives the first, and N - 1 passes of one token each (decode) the others.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch

from memcalc.errors import EstimateError, UsageError
from memcalc.imports import line
from memcalc.records.plan import Plan
from memcalc.workload import cache_layers, long_decode
from memcalc.workload.inputs import Batch, without_adapters
from memcalc.workload.job import Program, forward_context, restore_attributes
from memcalc.workload.wrapped_tensors import plain

_CACHES = (*cache_layers.NAMES, "cache_params", "past_buckets_states", "mems", "state")
"""Names of the outputs in which models return their caches."""
_KINDS = ("static", "offloaded", "quantized")
"""Caches that are arguments of ``generate``; dynamic and sliding ones are its defaults."""
_SLIDING = ("sliding_attention", "chunked_attention")


def run(program: Program, *, device: str, between: long_decode.Between | None = None) -> None:
    """Run a program's model without training: one forward pass, or ``generate``.

    Passes in the middle of a long generation only grow the cache: ``between`` is called with
    ``True`` before the first and ``False`` after the last of them.
    """
    plan, model = program.plan, program.model.eval()
    with torch.no_grad(), forward_context(plan, device):
        if plan.generate is None:
            outputs = model(**program.batch(device))
            del outputs
            return
        # The base model generates, also inside adapters.
        bare = without_adapters(model)
        with restore_attributes(bare):
            _generate(bare, lambda: program.batch(device), plan, between)


def _generate(
    model: Any, prompts: Callable[[], Batch], plan: Plan, between: long_decode.Between | None
) -> None:
    """Run transformers' ``generate`` for exactly ``plan.generate`` tokens."""
    tokens = plan.generate
    assert tokens is not None
    config = model.generation_config
    # By this private method transformers asks before every token whether to go on (5.23,
    # generation/utils.py): as many times, whichever tokens there are.
    left = iter(range(tokens))
    vars(model)["_has_unfinished_sequences"] = lambda *_, **__: next(left, None) is not None
    options: dict[str, Any] = {
        "max_new_tokens": tokens,
        # Serving engines sample from the whole vocabulary; otherwise decoding is greedy.
        **({"do_sample": True, "top_k": 0} if plan.engine is not None else {"do_sample": False}),
        "num_beams": plan.beams,
        **_name_cache_options(plan.cache),
    }
    if hasattr(config, "disable_compile"):
        # A compiled decode step would keep CUDA graphs; transformers before 4.51 compiles none.
        options["disable_compile"] = True
    if config.pad_token_id is None:
        options["pad_token_id"] = 0
    starts = (config.decoder_start_token_id, config.bos_token_id)
    if model.config.is_encoder_decoder and starts == (None, None):
        options["decoder_start_token_id"] = model.config.decoder_start_token_id

    if between is not None and long_decode.is_long(tokens):
        long_decode.shorten(model, tokens, between)
    try:
        model.generate(**prompts(), **options)
    except (ImportError, NotImplementedError, ValueError, AssertionError) as error:
        raise EstimateError(
            f"transformers does not generate here with {type(model).__name__} and the cache "
            f"{plan.cache}: {line(error).rstrip('.')}. Name another --cache."
        ) from error


def _name_cache_options(cache: str) -> dict[str, Any]:
    name, _, kind = cache.partition("-")
    if name not in _KINDS:
        return {}
    if name == "quantized" and kind:
        return {"cache_implementation": name, "cache_config": {"backend": kind}}
    return {"cache_implementation": cache.replace("-", "_")}


def check(model: torch.nn.Module, plan: Plan) -> None:
    """Raise UsageError if a model cannot generate, or not with the plan's KV cache.

    Raises:
        UsageError: it generates nothing, or has no such cache.
    """
    if plan.generate is None:
        return
    name = type(model).__name__
    able = getattr(model, "can_generate", None)
    if able is None or not able():
        _refuse_image_to_text(model)
        raise UsageError(
            f"{name} generates no tokens: --inference instead of --generate is one forward pass."
        )
    if plan.cache == "sliding" and not _has_windows(model):
        raise UsageError(
            f"{name} has no sliding window: leave --cache out, or name dynamic or static."
        )
    if plan.cache.startswith("offloaded"):
        _check_offloading(model, plan)
    cache_layers.check(plan.cache)


def _refuse_image_to_text(model: torch.nn.Module) -> None:
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as KNOWN,
    )

    config: Any = getattr(model, "config", None)
    if getattr(config, "model_type", None) in KNOWN:
        text = config.get_text_config(decoder=True)
        raise UsageError(
            f"Generating text from images is not supported yet: for the memory of the language "
            f"model in {type(model).__name__}, write its text_config ({text.model_type}) to a "
            "config.json of its own, or type --inference for one forward pass."
        )


def _check_offloading(model: Any, plan: Plan) -> None:
    if plan.target == "cpu":
        raise UsageError(
            "An offloaded cache leaves a GPU for host memory: leave out --target cpu, or name "
            "another --cache."
        )
    if model.config.is_encoder_decoder:
        raise UsageError(
            f"transformers attends to the cache of {type(model).__name__}'s encoder where it lies, "
            "in host memory, and fails: name another --cache."
        )
    if plan.cache == "offloaded-static" and _has_windows(model, all):
        raise UsageError(
            f"transformers offloads no layer with a sliding window, and {type(model).__name__} has "
            "no others: name another --cache."
        )


def _has_windows(model: Any, which: Callable[[Iterable[bool]], bool] = any) -> bool:
    """Return True if any (or all) of a model's layers have sliding-window attention."""
    config = model.config.get_text_config(decoder=True)
    types = getattr(config, "layer_types", None)
    if types is not None:
        return which(kind in _SLIDING for kind in types)
    return getattr(config, "sliding_window", None) is not None


def find_caches(held: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """Yield the tensors of KV caches in a model's keyword arguments or outputs."""
    seen: set[int] = set()
    for name in _CACHES:
        yield from _walk_tensors(held.get(name), seen)


def _walk_tensors(value: Any, seen: set[int]) -> Iterator[torch.Tensor]:
    """Yield all tensors in a cache object, at any depth of attributes, without modules."""
    if value is None or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        # What a package quantizes holds tensors of its own.
        yield from plain(value)
        return
    parts: Any = ()
    if isinstance(value, dict | list | tuple):
        parts = value.values() if isinstance(value, dict) else value
    elif isinstance(value, torch.nn.Module) or hasattr(value, "to_dict"):
        return
    elif type(value).__module__.startswith("transformers"):
        parts = vars(value).values()
    for part in parts:
        yield from _walk_tensors(part, seen)
