"""Fits of the advantage network of a poker solver (Deep CFR), batch after batch.

    deep_cfr_fit.py [BATCH...]

Source: a public repository (src/ac_cfr/benchmarking/modified_hulhe_calibration.py, with
solvers/naive_deep_cfr.py and models/networks.py): 201 numbers of a position, 7 layers of 512, 3
values. 30,000 samples lie in the computer's memory, of which 3,000 are kept for validation. First
comes one long fit in batches of 10,000; then one of each BATCH, with a network of its own, after
the cache was given back. The last is the one that is read; without a BATCH the long fit.

What decides memory: activations of fp32 layers; Adam; gradients are dropped before each step and
clipped; at each milestone the loss of up to four batches of samples, which are at most all 27,000,
is taken in one pass. The matmul's workspace stays from the first fit on.
"""

import sys

import torch
from torch import nn

INPUTS, WIDTH, LAYERS, ACTIONS = 201, 512, 7, 3
SAMPLES, KEPT = 30_000, 3_000
LONG = (10_000, 4)
"""Batch and milestones of the long fit."""
STEPS = 4
"""Updates up to a milestone."""


def network() -> nn.Sequential:
    """Values of actions."""
    layers: list[nn.Module] = []
    width = INPUTS
    for _ in range(LAYERS):
        layers += [nn.Linear(width, WIDTH), nn.ReLU()]
        width = WIDTH
    return nn.Sequential(*layers, nn.Linear(width, ACTIONS)).to("cuda")


def look(*tensors: torch.Tensor) -> None:
    """Whether all is finite."""
    for one in tensors:
        bool(torch.isfinite(one).all())


class Reservoir:
    """Samples, which lie in the computer's memory."""

    def __init__(self) -> None:
        self.states = torch.rand(SAMPLES, INPUTS).half()
        self.targets = torch.rand(SAMPLES, ACTIONS)
        self.legal = torch.ones(SAMPLES, ACTIONS, dtype=torch.bool)
        self.iterations = torch.ones(SAMPLES)
        order = torch.randperm(SAMPLES)
        self.training, self.validation = order[KEPT:], order[:KEPT]

    def loss(self, values: torch.Tensor, which: torch.Tensor) -> torch.Tensor:
        """Squared errors of legal actions, weighted by when a sample was taken."""
        return self.weighted(
            values,
            self.targets[which].to("cuda"),
            self.legal[which].to("cuda"),
            self.iterations[which].to("cuda"),
        )

    @staticmethod
    def weighted(
        values: torch.Tensor, targets: torch.Tensor, legal: torch.Tensor, taken: torch.Tensor
    ) -> torch.Tensor:
        look(values, targets, values, taken)
        squares = (values - targets).square()
        errors = (squares * legal).sum(dim=1)
        weights = 2.0 * taken / 1
        loss = (weights * errors).mean()
        look(loss)
        return loss

    def judge(self, model: nn.Module, which: torch.Tensor) -> float:
        """The loss of a pass that keeps nothing."""
        with torch.inference_mode():
            values = model(self.states[which].to(device="cuda", dtype=torch.float32))
            loss = self.loss(values, which)
        return float(loss)


def updates(
    model: nn.Module, optimizer: torch.optim.Optimizer, data: Reservoir, batch: int
) -> None:
    """Of one milestone."""
    look(*model.parameters())
    model.train()
    for _ in range(STEPS):
        which = data.training[torch.randint(len(data.training), (batch,))]
        optimizer.zero_grad(set_to_none=True)
        states = data.states[which].to(device="cuda", dtype=torch.float32)
        loss = data.loss(model(states), which)
        loss.backward()
        for one in model.parameters():
            if one.grad is not None:
                look(one.grad)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True)
        optimizer.step()
        look(*model.parameters())
    model.eval()


def fit(model: nn.Module, data: Reservoir, batch: int, milestones: int) -> None:
    """Train, with the losses of training and validation at each milestone."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(milestones):
        updates(model, optimizer, data, batch)
        torch.cuda.synchronize()
        data.judge(model, data.training[: 4 * batch])
        data.judge(model, data.validation[: 4 * batch])


def main(*batches: str) -> None:
    """The long fit, then those of the batches."""
    data = Reservoir()
    model = network()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    torch.cuda.reset_peak_memory_stats()
    fit(model, data, *LONG)
    for batch in batches:
        del model
        torch.cuda.empty_cache()
        model = network()
        torch.cuda.reset_peak_memory_stats()
        fit(model, data, int(batch), 2)
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
