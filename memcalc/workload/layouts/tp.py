"""Products divided over GPUs by DTensor's styles, and FSDP2 over the other dimension of the mesh.

q, k, v, gate and up are divided by columns, o and down by rows, the output head by columns with a
replicated result. With ``sequence_parallel`` norms and residuals are divided along tokens as well;
with ``divide_embedding`` embeddings are by rows, as serving engines have them. Models whose layers
are built otherwise are divided by transformers' own plan for them, mixtures of experts among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from memcalc.errors import UsageError
from memcalc.imports import line
from memcalc.workload.layouts import Rank, fsdp2

if TYPE_CHECKING:
    import torch

_BY_COLUMNS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    *("mlp.gate_proj", "mlp.up_proj"),
)
_BY_ROWS = ("self_attn.o_proj", "mlp.down_proj")


def divide(model: Any, rank: Rank, mesh: Any) -> None:
    """Split the model's linear layers over the tensor-parallel ranks."""
    from torch.distributed.tensor import Replicate, parallel

    from memcalc.workload.blocks import blocks
    from memcalc.workload.inputs import without_adapters

    options, mesh = rank.options, mesh["tp"]
    sequence = bool(options.get("sequence_parallel", False))
    whole_model, model = model, without_adapters(model)
    layers = blocks(model)
    products: tuple[str, ...] = (*_BY_COLUMNS, *_BY_ROWS)
    if rank.spread.experts > 1:
        # Experts are divided otherwise.
        products = tuple(name for name in products if not name.startswith("mlp."))
    if not set(products) <= dict(layers[0].named_modules()).keys():
        _divide_by_own_plan(model, rank, mesh, has_adapters=model is not whole_model)
        return
    _check_heads(model, mesh.size())
    inner: dict[str, Any] = {
        name: parallel.ColwiseParallel() if name in _BY_COLUMNS else parallel.RowwiseParallel()
        for name in products
    }
    whole = Replicate()
    root: dict[str, Any] = {"lm_head": parallel.ColwiseParallel(output_layouts=whole)}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    # One tensor cannot be a part in the head and whole in the embedding.
    is_tied = None not in (embedding, head) and embedding.weight is head.weight
    if sequence or is_tied or options.get("divide_embedding"):
        root["model.embed_tokens"] = parallel.RowwiseParallel(
            input_layouts=whole, output_layouts=whole
        )
    if sequence:
        _add_sequence_parallel(inner, root)
    # Stages in the middle have neither an embedding nor a head.
    root = {name: style for name, style in root.items() if name in dict(model.named_modules())}
    for layer in layers:
        parallel.parallelize_module(layer, mesh, _move_to_adapters(layer, inner, sequence))
    parallel.parallelize_module(model, mesh, _move_to_adapters(model, root, sequence))


def _divide_by_own_plan(model: Any, rank: Rank, mesh: Any, *, has_adapters: bool) -> None:
    """Split a model by transformers' own tensor-parallel plan for it.

    Raises:
        UsageError: transformers has no plan for it, or there are adapters or options.
    """
    refusal = f"{{}}: choose --parallel fsdp2 for {type(model).__name__}."
    asked = {name for name in ("sequence_parallel", "divide_embedding") if rank.options.get(name)}
    if has_adapters or asked:
        what = "adapters" if has_adapters else min(asked)
        raise UsageError(refusal.format(f"transformers' tensor parallelism takes no {what}"))
    try:
        from transformers.distributed import DistributedConfig

        over = rank.spread
        within = over.axes.get("dp_shard", 1) * over.axes.get("cp", 1)
        sizes = {"tp_size": mesh.size(), "fsdp_size": within, "ep_size": over.experts}
        plan, *_ = model._resolve_parallel_plans(DistributedConfig(**sizes))
        _check_heads(model, mesh.size())
        _apply_plan(model, mesh, plan)
    except ImportError:
        told = "transformers divides models other than Llama's kind since 5.21: install it"
        raise UsageError(refusal.format(told)) from None
    except (AttributeError, ValueError) as error:
        raise UsageError(refusal.format(line(error).rstrip("."))) from None


def _apply_plan(model: Any, mesh: Any, plan: dict[str, str]) -> None:
    """Split a model by a tensor-parallel plan, and tie the output head again."""
    from transformers.distributed.tensor_parallel import apply_tensor_parallelism

    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    is_tied = None not in (embedding, head) and embedding.weight is head.weight
    named = {name for name, _ in [*model.named_modules(), *model.named_parameters()]}
    apply_tensor_parallelism(model, mesh, {name: plan[name] for name in plan if name in named})
    if is_tied:
        head.weight = embedding.weight


def _check_heads(model: torch.nn.Module, ranks: int) -> None:
    """Raise UsageError unless the number of ranks divides the attention heads.

    Raises:
        UsageError: the heads cannot be divided.
    """
    config: Any = model.config
    for name in ("num_attention_heads", "num_key_value_heads"):
        heads = getattr(config, name, None) or ranks
        if heads % ranks:
            raise UsageError(
                f"{name} is {heads}, which {ranks} GPUs cannot divide: choose a tp that does, or "
                "--parallel fsdp2."
            )


def _move_to_adapters(module: torch.nn.Module, styles: dict[str, Any], sequence: bool) -> Any:
    """Return parallel styles moved from adapted layers to their base layer and LoRA matrix.

    By columns it is the second product, by rows the first: the other side is as narrow as the
    adapter and stays whole.

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


def _add_sequence_parallel(inner: dict[str, Any], root: dict[str, Any]) -> None:
    """Change the parallel styles so that norms and residuals are split along tokens.

    transformers makes the mask from the embeddings' length: tokens are divided after them.
    """
    from torch.distributed.tensor import Replicate, Shard, parallel

    whole, divided = Replicate(), Shard(1)
    norms = ("input_layernorm", "post_attention_layernorm")
    inner |= dict.fromkeys(norms, parallel.SequenceParallel())
    inner["self_attn"] = parallel.PrepareModuleInput(
        input_kwarg_layouts={"hidden_states": divided},
        desired_input_kwarg_layouts={"hidden_states": whole},
    )
    inner["mlp"] = parallel.PrepareModuleInput(
        input_layouts=(divided,), desired_input_layouts=(whole,)
    )
    inner |= {name: parallel.RowwiseParallel(output_layouts=divided) for name in _BY_ROWS}
    root["model.layers.0"] = parallel.PrepareModuleInput(
        input_layouts=(whole,), desired_input_layouts=(divided,), use_local_output=True
    )
    root["model.norm"] = parallel.SequenceParallel()
    root["lm_head"] = parallel.ColwiseParallel(input_layouts=divided, output_layouts=whole)


def make_groups(model: torch.nn.Module) -> list[Any]:
    """Return the optimizer's parameter groups, one for each device mesh."""
    return [{"params": group} for group in _group_by_mesh(model)]


def clip(model: torch.nn.Module, norm: float) -> None:
    """Clip the gradients to one total norm over the parameters of all device meshes."""
    import torch
    from torch.nn.utils import clip_grad_norm_, clip_grads_with_norm_, get_total_norm

    groups = _group_by_mesh(model)
    if len(groups) == 1:
        clip_grad_norm_(groups[0], norm)
        return
    norms: list[Any] = [get_total_norm([p.grad for p in g if p.grad is not None]) for g in groups]
    whole = [one.full_tensor() if hasattr(one, "full_tensor") else one for one in norms]
    total = torch.linalg.vector_norm(torch.stack(whole))
    for group in groups:
        clip_grads_with_norm_(group, norm, total)


def _group_by_mesh(model: torch.nn.Module) -> list[list[Any]]:
    """Return the trained parameters in groups of the same device mesh."""
    groups: dict[Any, list[Any]] = {}
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups.setdefault(getattr(parameter, "device_mesh", None), []).append(parameter)
    return list(groups.values())


LAYOUT = replace(
    fsdp2.LAYOUT,
    name="tp",
    summary="products of each layer divided, such as tp=2 or tp=2,fsdp2=4",
    divide=divide,
    handed_over=None,
    options=(*fsdp2.LAYOUT.options, "sequence_parallel", "divide_embedding"),
    groups=make_groups,
    clip=clip,
)
