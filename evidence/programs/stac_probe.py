"""One step of a perceptron of 1.0M weights with one optimizer after the other, as STAC probes them.

    stac_probe.py KIND...

KIND is ``momentum`` (the sign of a running mean of gradients, but AdamW for the last layer),
``sign`` (that of gradients) or ``adamw`` (PyTorch's, for all). The last one is read.
Source: smturtle2/stac-optimizer, examples/research_benchmark.py and src/stac_optimizer/stac.py.

What decides memory: cuBLAS's workspace more than anything else; then weights, gradients and states
in fp32, and the lists of tensors that all optimizers make of their updates. Small networks are
trained in the same process before, some steps of two kinds, and nothing but a step is read, with
the cache given back and peaks set back before it.
"""

import itertools
import sys

import torch
from torch import nn
from torch.nn import functional
from torch.optim.adamw import adamw

WIDTHS = [256, 512, 512, 512, 512, 64, 8]
STEPS, BATCH = 3, 128


def perceptron(*widths: int) -> nn.Sequential:
    """With a ReLU between layers."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Signs(torch.optim.Optimizer):
    """Signs for all layers but the last, which has AdamW."""

    def __init__(self, model: nn.Sequential, momentum: float) -> None:
        last = list(model[-1].parameters())
        rest = [one for layer in model[:-1] for one in layer.parameters()]
        super().__init__([{"params": rest, "last": False}, {"params": last, "last": True}], {})
        self.momentum, self.rate = momentum, 2e-3

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """Of both kinds, if all gradients are finite."""
        del closure
        for group in self.param_groups:
            for one in group["params"]:
                if not torch.isfinite(one.grad).all():
                    return
        for group in self.param_groups:
            (self.adam if group["last"] else self.signs)(group["params"])

    def signs(self, weights: list[torch.Tensor]) -> None:
        """Of gradients, or of their running means."""
        gradients = [one.grad for one in weights]
        means = []
        if self.momentum:
            for one in weights:
                if "mean" not in self.state[one]:
                    self.state[one]["mean"] = torch.zeros_like(one)
                means.append(self.state[one]["mean"])
        torch._foreach_mul_(weights, 1 - 0.75 * self.rate * 1e-2)
        if self.momentum:
            torch._foreach_mul_(means, self.momentum)
            torch._foreach_add_(means, gradients, alpha=1 - self.momentum)
        found = torch._foreach_sign(means or gradients)
        torch._foreach_add_(weights, found, alpha=-0.75 * self.rate)

    def adam(self, weights: list[torch.Tensor]) -> None:
        """PyTorch's own function."""
        for one in weights:
            if not self.state[one]:
                self.state[one]["step"] = torch.zeros((), device=one.device)
                self.state[one]["first"] = torch.zeros_like(one)
                self.state[one]["second"] = torch.zeros_like(one)
        adamw(
            weights,
            [one.grad for one in weights],
            [self.state[one]["first"] for one in weights],
            [self.state[one]["second"] for one in weights],
            [],
            [self.state[one]["step"] for one in weights],
            amsgrad=False,
            beta1=0.9,
            beta2=0.999,
            lr=self.rate,
            weight_decay=1e-2,
            eps=1e-8,
            maximize=False,
        )


def optimizer_of(kind: str, model: nn.Sequential) -> torch.optim.Optimizer:
    """By its name."""
    if kind == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-2)
    return Signs(model, 0.9 if kind == "momentum" else 0.0)


def train(kind: str, widths: list[int], classes: bool) -> None:
    """A small network on data that is on the GPU."""
    inputs, tests = (torch.randn(size, widths[0]).to("cuda") for size in (4096, 512))
    wanted = torch.randint(0, 4, (4096,)) if classes else torch.randn(4096, widths[-1])
    wanted = wanted.to("cuda")
    model = perceptron(*widths).to("cuda")
    optimizer = optimizer_of(kind, model)
    loss_of = functional.cross_entropy if classes else functional.mse_loss
    for _ in range(STEPS):
        index = torch.randint(4096, (256,)).to("cuda")
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model(inputs[index]), wanted[index])
        loss.backward()
        optimizer.step()
        loss.detach().cpu()
    with torch.no_grad():
        model(tests).sum().cpu()


def probe(kind: str) -> None:
    """The step that is read."""
    torch.cuda.empty_cache()
    torch.cuda.synchronize()
    model = perceptron(*WIDTHS).to("cuda")
    optimizer = optimizer_of(kind, model)
    inputs = torch.randn(BATCH, WIDTHS[0], device="cuda")
    wanted = torch.randn(BATCH, WIDTHS[-1], device="cuda")
    optimizer.zero_grad(set_to_none=True)
    torch.cuda.reset_peak_memory_stats()
    answer = model(inputs)
    loss = functional.mse_loss(answer, wanted)
    loss.backward()
    optimizer.step()
    torch.cuda.synchronize()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")
    del loss, answer, optimizer, model, inputs, wanted
    torch.cuda.empty_cache()


def main(*kinds: str) -> None:
    """Train all, then probe all."""
    for widths, classes in (([24, 64, 32, 3], False), ([20, 64, 32, 4], True)):
        for kind in ("momentum", "momentum", "sign", "adamw"):
            train(kind, widths, classes)
    for kind in kinds:
        probe(kind)


if __name__ == "__main__":
    main(*sys.argv[1:])
