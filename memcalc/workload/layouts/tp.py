"""Products divided over GPUs by DTensor's styles, and FSDP2 over the other dimension of the mesh.

q, k, v, gate and up are divided by columns, o and down by rows, the output head by columns with a
replicated result. With ``sequence_parallel`` norms and residuals are divided along tokens as well;
with ``divide_embedding`` embeddings are by rows, as serving engines have them.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from memcalc.errors import UsageError
from memcalc.workload.layouts import Layout, Rank, fsdp2

if TYPE_CHECKING:
    import torch

_BY_COLUMNS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    *("mlp.gate_proj", "mlp.up_proj"),
)
_BY_ROWS = ("self_attn.o_proj", "mlp.down_proj")


def divide(model: Any, rank: Rank, mesh: Any) -> None:
    """Divide each block over the inner dimension of the mesh."""
    from torch.distributed.tensor import Replicate, parallel

    from memcalc.workload.blocks import blocks
    from memcalc.workload.inputs import without_adapters

    options, mesh = rank.options, mesh["tp"]
    sequence = bool(options.get("sequence_parallel", False))
    model = without_adapters(model)
    layers = blocks(model)
    products: tuple[str, ...] = (*_BY_COLUMNS, *_BY_ROWS)
    if rank.spread.experts > 1:
        # Experts are divided otherwise.
        products = tuple(name for name in products if not name.startswith("mlp."))
    for name in products:
        try:
            layers[0].get_submodule(name)
        except AttributeError:
            raise UsageError(
                f"{type(model).__name__} has no {name} in its layers: tensor parallelism is for "
                "models whose layers are built like Llama's. Train with --parallel fsdp2, or "
                "serve from one GPU."
            ) from None
    _check_heads(model, mesh.size())
    inner: dict[str, Any] = {
        name: parallel.ColwiseParallel() if name in _BY_COLUMNS else parallel.RowwiseParallel()
        for name in products
    }
    root: dict[str, Any] = {"lm_head": parallel.ColwiseParallel(output_layouts=Replicate())}
    if sequence:
        inner |= _along_tokens()
        root |= _around_tokens()
    elif _tied(model) or options.get("divide_embedding"):
        # One tensor cannot be a part in the head and whole in the embedding.
        root |= _embedding()
    # Stages in the middle have neither an embedding nor a head.
    root = {name: style for name, style in root.items() if name in dict(model.named_modules())}
    for layer in layers:
        parallel.parallelize_module(layer, mesh, _with_adapters(layer, inner, sequence))
    parallel.parallelize_module(model, mesh, _with_adapters(model, root, sequence))


def _check_heads(model: torch.nn.Module, ranks: int) -> None:
    """Each rank has whole heads.

    Raises:
        UsageError: they cannot be divided.
    """
    config: Any = model.config
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None) or ranks
        if heads % ranks:
            raise UsageError(
                f"{name} is {heads}, which {ranks} GPUs cannot divide: choose a tp that does, or "
                "--parallel fsdp2."
            )


def _with_adapters(module: torch.nn.Module, styles: dict[str, Any], sequence: bool) -> Any:
    """The styles of layers that adapters stand around, for what is inside of these.

    What goes with a part of the base layer is divided as that part is, and what is as narrow as
    the adapter is whole: by columns the second of its products, by rows the first.

    Raises:
        UsageError: it is not known how such a layer is divided.
    """
    from torch.distributed.tensor import parallel

    found: dict[str, Any] = {}
    for name, style in styles.items():
        one: Any = module.get_submodule(name)
        if not hasattr(one, "base_layer"):
            found[name] = style
            continue
        divided = {parallel.ColwiseParallel: "lora_B", parallel.RowwiseParallel: "lora_A"}.get(
            type(style)
        )
        if sequence or divided is None or getattr(one, "lora_embedding_A", None):
            raise UsageError(
                f"How {name} is divided along tokens with adapters around it is not known: leave "
                "out sequence_parallel, or choose --parallel fsdp2."
                if sequence
                else f"How adapters around {name} are divided is not known: choose other layers."
            )
        found[f"{name}.base_layer"] = style
        for adapter in getattr(one, divided):
            found[f"{name}.{divided}.{adapter}"] = style
    return found


def _along_tokens() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard, parallel

    return {
        "input_layernorm": parallel.SequenceParallel(),
        "post_attention_layernorm": parallel.SequenceParallel(),
        "self_attn": parallel.PrepareModuleInput(
            input_kwarg_layouts={"hidden_states": Shard(1)},
            desired_input_kwarg_layouts={"hidden_states": Replicate()},
        ),
        "mlp": parallel.PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)
        ),
        "self_attn.o_proj": parallel.RowwiseParallel(output_layouts=Shard(1)),
        "mlp.down_proj": parallel.RowwiseParallel(output_layouts=Shard(1)),
    }


def _around_tokens() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, Shard, parallel

    # transformers makes the mask from the embeddings' length: tokens are divided after them.
    return {
        **_embedding(),
        "model.layers.0": parallel.PrepareModuleInput(
            input_layouts=(Replicate(),),
            desired_input_layouts=(Shard(1),),
            use_local_output=True,
        ),
        "model.norm": parallel.SequenceParallel(),
        "lm_head": parallel.ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    }


def _embedding() -> dict[str, Any]:
    from torch.distributed.tensor import Replicate, parallel

    whole = Replicate()
    return {
        "model.embed_tokens": parallel.RowwiseParallel(input_layouts=whole, output_layouts=whole)
    }


def _tied(model: Any) -> bool:
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    return embedding is not None and head is not None and embedding.weight is head.weight


def groups(model: torch.nn.Module) -> list[Any]:
    """A group of each kind."""
    return [{"params": group} for group in _kinds(model)]


def clip(model: torch.nn.Module, norm: float) -> None:
    """To one norm of all kinds together."""
    import torch
    from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

    kinds = _kinds(model)
    if len(kinds) == 1:
        clip_grad_norm_(kinds[0], norm)
        return
    norms: list[Any] = [get_total_norm([p.grad for p in k if p.grad is not None]) for k in kinds]
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in norms]
    total = torch.linalg.vector_norm(torch.stack(whole))
    for kind in kinds:
        clip_grads_with_norm_(kind, norm, total)


def _kinds(model: torch.nn.Module) -> list[list[Any]]:
    """Operators over lists take no tensors and DTensors together, nor those of several meshes."""
    kinds: dict[Any, list[Any]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            kinds.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(kinds.values())


def quiet(model: torch.nn.Module, last: bool) -> contextlib.AbstractContextManager[None]:
    """As FSDP2 where it is there; else there is nothing to keep quiet."""
    sharded = hasattr(model, "set_requires_gradient_sync")
    return fsdp2.quiet(model, last) if sharded else contextlib.nullcontext()


LAYOUT = Layout(
    name="tp",
    summary="products of each layer divided, such as tp=2 or tp=2,fsdp2=4",
    place=fsdp2.place_divided,
    divide=divide,
    options=(*fsdp2.LAYOUT.options, "sequence_parallel", "divide_embedding"),
    mixed=fsdp2.LAYOUT.mixed,
    casts=True,
    groups=groups,
    quiet=quiet,
    clip=clip,
    even=fsdp2.even,
)
