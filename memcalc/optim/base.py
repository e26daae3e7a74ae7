"""The base class of the shipped optimizers: checks, layout, batching by dtype, loading."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from memcalc.optim.scalars import Scalars


class Work(NamedTuple):
    """A parameter's part of a batch; n elements, all flat tensors in the same order.

    Attributes:
        param: The parameter, or a copy of it in its state's layout, as (n,).
        grad: The gradient as (n,), in the same order.
        state: The state's tensors by name, flat.
        ordinal: The parameter's place in the optimizer.
    """

    param: Tensor
    grad: Tensor
    state: dict[str, Tensor]
    ordinal: int


def local(tensor: Tensor) -> Tensor:
    """Return this rank's local tensor of a DTensor, or the tensor itself."""
    to_local = getattr(tensor, "to_local", None)
    return tensor if to_local is None else to_local()


def flat(tensor: Tensor) -> Tensor:
    """Return a 1-D view of a dense tensor in memory order."""
    return tensor.view(-1) if tensor.is_contiguous() else tensor.as_strided((tensor.numel(),), (1,))


def _match_strides(tensor: Tensor, like: Tensor) -> Tensor:
    """Return a tensor with the strides of ``like``: itself, or a copy if they differ."""
    if tensor.stride() == like.stride() or (tensor.is_contiguous() and like.is_contiguous()):
        return tensor
    return torch.empty_like(like, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


# The key under which bitsandbytes (0.49 and later) hides its tensors in a checkpoint.
_BITSANDBYTES_KEY = "__bnb_optimizer_quant_state__"


@dataclass(frozen=True, slots=True)
class _Uncast:
    """A wrapper of a loaded tensor that keeps torch from casting it."""

    tensor: Tensor


class BatchedOptimizer(torch.optim.Optimizer):
    """An optimizer that updates many tensors with one operator call."""

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters to train, with their own settings.

        Raises:
            ValueError: a setting is out of its range.
            TypeError: a parameter's dtype is one this optimizer does not train.
        """
        super().add_param_group(param_group)
        try:
            self._check_group(self.param_groups[-1])
        except (TypeError, ValueError):
            self.param_groups.pop()
            raise

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient, in batches by device, dtype and step.

        Args:
            closure: Reevaluates the model, with gradients, and returns the loss.

        Returns:
            The closure's loss, or None.

        Raises:
            RuntimeError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        ordinal = 0
        for group in self.param_groups:
            self._step_group(group, ordinal)
            ordinal += len(group["params"])
        return loss

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state, keeping the dtypes that its tensors were saved with.

        Like torch's optimizers it does not copy tensors that are on the parameter's device.
        """
        # Registered last, so that a user's own hooks see plain tensors.
        handle = self.register_load_state_dict_pre_hook(_wrap_state)
        try:
            super().load_state_dict(state_dict)
        finally:
            handle.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        for param, values in self.state.items():
            if isinstance(param, Tensor):
                for name, value in values.items():
                    if isinstance(value, _Uncast):
                        values[name] = value.tensor.to(device=param.device)
                self._complete(param, values)

    def _step_group(self, group: dict[str, Any], first_ordinal: int) -> None:
        batches: dict[tuple[Any, ...], list[Work]] = {}
        for param, grad, ordinal in _iterate_gradients(group, first_ordinal):
            state = self.state[param]
            if not state:
                state["step"] = 0
                state.update(self._initial_state(param, group))
            state["step"] += 1
            work = self._make_work(param, grad, group, ordinal)
            if work is not None:
                tensors = work.param, work.grad
                kinds = (work.param.device, *(tensor.dtype for tensor in tensors), *work.state)
                batches.setdefault((*kinds, state["step"]), []).append(work)
        for key, works in batches.items():
            self._update(works, group, key[-1])

    def _make_work(
        self, param: Tensor, grad: Tensor, group: dict[str, Any], ordinal: int
    ) -> Work | None:
        """Return a parameter's part of a batch, or None if it had to be updated at once.

        If that needs copies, the parameter is updated at once and alone, so that the copies live
        only briefly; then it returns None.
        """
        target, gradient, values = local(param), local(grad), self.state[param]
        state = {name: local(t) for name, t in values.items() if isinstance(t, Tensor)}
        like = next(iter(state.values()))
        laid_out, laid_out_grad = _match_strides(target, like), _match_strides(gradient, like)
        flat_state = {name: flat(tensor) for name, tensor in state.items()}
        work = Work(flat(laid_out), flat(laid_out_grad), flat_state, ordinal)
        if laid_out is target and laid_out_grad is gradient:
            return work
        self._update([work], group, values["step"])
        if laid_out is not target:
            target.copy_(laid_out)
        return None

    @abstractmethod
    def _check_group(self, group: dict[str, Any]) -> None:
        """Raise if a setting or a parameter is not one this optimizer can train."""

    @abstractmethod
    def _initial_state(self, param: Tensor, group: dict[str, Any]) -> dict[str, Tensor]:
        """Return the new state tensors of a parameter, by name."""

    @abstractmethod
    def _update(self, works: list[Work], group: dict[str, Any], step: int) -> None:
        """Update parameters that share dtypes, device and step, and their states."""

    def _complete(self, param: Tensor, values: dict[str, Any]) -> None:
        """Convert one parameter's loaded state to this optimizer's form."""
        if isinstance(values.get("step"), Tensor):
            values["step"] = int(values["step"].item())


def collect_scalars(group: dict[str, Any], step: int, *, lr: float, decoupled: bool) -> Scalars:
    """Return the numbers of one step, from a parameter group's settings."""
    names = ("eps", "weight_decay")
    numbers = (lr, *group["betas"], *(group[name] for name in names), step, group["maximize"])
    return Scalars._make(map(float, (*numbers, decoupled)))


def check_adam_settings(group: dict[str, Any]) -> None:
    """Raise ValueError, with the valid range, if a setting of Adam is out of it."""
    for name in ("lr", "eps", "weight_decay"):
        if not float(group[name]) >= 0.0:
            raise ValueError(f"{name} must be at least 0, but is {group[name]}")
    if len(group["betas"]) != 2 or not all(0.0 <= float(beta) < 1.0 for beta in group["betas"]):
        raise ValueError(f"betas must be two numbers in [0, 1), but are {group['betas']}")


def _iterate_gradients(
    group: dict[str, Any], first_ordinal: int
) -> Iterator[tuple[Tensor, Tensor, int]]:
    """Yield each parameter of a group that has a gradient, the gradient and its number."""
    for ordinal, param in enumerate(group["params"], first_ordinal):
        if param.grad is None or local(param).numel() == 0:
            continue
        if param.grad.layout != torch.strided:
            raise RuntimeError(
                "a gradient is sparse, and this optimizer needs dense ones: "
                "make the embedding with sparse=False, or give it to torch.optim.SparseAdam"
            )
        yield param, param.grad, ordinal


def _wrap_state(_: torch.optim.Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with wrapped tensors, which torch does not cast."""
    shielded = {}
    for key, values in state_dict["state"].items():
        plain = dict(values)
        plain.update(plain.pop(_BITSANDBYTES_KEY, {}))
        shielded[key] = {
            name: _Uncast(value) if isinstance(value, Tensor) else value
            for name, value in plain.items()
        }
    return {**state_dict, "state": shielded}
