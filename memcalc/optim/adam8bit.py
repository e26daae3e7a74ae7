"""Adam with 8-bit moments: 2.03 bytes of state per parameter instead of 8."""

from typing import Any

import torch
from torch import Tensor, nn

from memcalc.optim.base import BatchedOptimizer, Work, check_adam_settings, collect_scalars, local
from memcalc.optim.blockwise import count_blocks, dynamic_map
from memcalc.optim.ops import run

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Adam8bit(BatchedOptimizer):
    """Adam whose moments are stored as 8-bit codes in blocks of 256 with a scale each.

    Weight decay is added to the gradient, as ``torch.optim.Adam`` does.

    A tensor of fewer than ``min_8bit_size`` elements keeps float32 moments, as does a group with
    ``optim_bits=32``; every setting can be given per parameter group.

    Args:
        params: Parameters (float32, bfloat16 or float16) or groups of them.
        lr: Learning rate, a float or a tensor of one element; a tensor on a GPU is read back
            at every step, which waits for the GPU.
        betas: Decays of the two moments.
        eps: Added to the root of the second moment.
        weight_decay: At least 0.
        min_8bit_size: Elements from which a tensor's moments are 8-bit.
        optim_bits: 8, or 32 to keep this group's moments in float32.
        maximize: Climb instead of descend.

    Source: Dettmers et al., "8-bit Optimizers via Block-wise Quantization", ICLR 2022.
    """

    _decoupled = False

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        min_8bit_size: int = 4096,
        optim_bits: int = 8,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params,
            {
                "lr": lr,
                "betas": betas,
                "eps": eps,
                "weight_decay": weight_decay,
                "min_8bit_size": min_8bit_size,
                "optim_bits": optim_bits,
                "maximize": maximize,
            },
        )

    def _check_group(self, group: dict[str, Any]) -> None:
        check_adam_settings(group)
        if group["optim_bits"] not in (8, 32):
            raise ValueError(f"optim_bits must be 8 or 32, but is {group['optim_bits']}")
        for param in group["params"]:
            if param.dtype not in _DTYPES:
                raise TypeError(
                    f"{type(self).__name__} trains float32, bfloat16 and float16 parameters, "
                    f"but one is {param.dtype}"
                )

    def _initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        value = local(param)
        if group["optim_bits"] == 32 or value.numel() < group["min_8bit_size"]:
            return {
                "state1": torch.zeros_like(value, dtype=torch.float32),
                "state2": torch.zeros_like(value, dtype=torch.float32),
            }
        qmap1, qmap2 = self._shared_maps(value.device)
        blocks = count_blocks(value.numel())
        return {
            "state1": torch.zeros_like(value, dtype=torch.uint8),
            "state2": torch.zeros_like(value, dtype=torch.uint8),
            "absmax1": torch.zeros(blocks, dtype=torch.float32, device=value.device),
            "absmax2": torch.zeros(blocks, dtype=torch.float32, device=value.device),
            "qmap1": qmap1,
            "qmap2": qmap2,
        }

    def _shared_maps(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """Return this optimizer's two code maps on a device, made on first use."""
        for values in self.state.values():
            if "qmap1" in values and values["qmap1"].device == device:
                return values["qmap1"], values["qmap2"]
        return dynamic_map(signed=True).to(device), dynamic_map(signed=False).to(device)

    def _complete(self, param: Tensor, values: dict[str, Any]) -> None:
        super()._complete(param, values)
        if "qmap1" in values:
            # Loaded or copied states bring a map each; the first one found serves them all.
            values["qmap1"], values["qmap2"] = self._shared_maps(values["qmap1"].device)

    def _update(self, works: list[Work], group: dict[str, Any], step: int) -> None:
        lr = float(group["lr"])
        scalars = collect_scalars(group, step, lr=lr, decoupled=self._decoupled)
        first = works[0].state
        columns = [
            [w.state[name] for w in works]
            for name in ("state1", "state2", "absmax1", "absmax2")
            if name in first
        ]
        given = [w.param for w in works], [w.grad for w in works], *columns
        if "qmap1" in first:
            run("adam_8bit", *given, first["qmap1"], first["qmap2"], scalars=scalars)
        else:
            run("adam_32bit", *given, scalars=scalars)


class AdamW8bit(Adam8bit):
    """``Adam8bit`` with AdamW's decoupled weight decay; takes the same arguments.

    Source: Loshchilov and Hutter, "Decoupled Weight Decay Regularization", ICLR 2019.
    """

    _decoupled = True

    def __init__(
        self,
        params: Any,
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        min_8bit_size: int = 4096,
        optim_bits: int = 8,
        maximize: bool = False,
    ) -> None:
        more = {"min_8bit_size": min_8bit_size, "optim_bits": optim_bits, "maximize": maximize}
        super().__init__(params, lr, betas, eps, weight_decay, **more)  # type: ignore[arg-type]


def embeddings_in_32bit(model: nn.Module) -> list[dict[str, Any]]:
    """Return parameter groups of a model, with 32-bit states for its embeddings.

    A weight tied to an embedding (an output layer's) counts as the embedding.

    Args:
        model: Any module; every ``nn.Embedding`` and ``nn.EmbeddingBag`` in it is found.

    Returns:
        Parameter groups for ``AdamW8bit`` or ``Adam8bit``; a group without parameters is
        left out.

    Source: Dettmers et al. 2022, section 2.3, which keeps embeddings in 32 bit for stability.
    """
    embeddings = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
    }
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if id(p) not in embeddings]},
        {"params": [p for p in trainable if id(p) in embeddings], "optim_bits": 32},
    ]
    return [group for group in groups if group["params"]]
