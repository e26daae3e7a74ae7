"""An error inside backward ends a simulated run with its own message, and not the process."""

import pytest

DEVICE = "simgpu"


def _backward(kind):
    """Run a backward that fails in the engine's thread, and tell what comes out of it."""
    import torch
    from torch.utils.checkpoint import checkpoint

    from memcalc.kernels.target import Target
    from memcalc.trace import device
    from memcalc.trace.recorder import TraceRecorder
    from memcalc.trace.scratch.kernels import TargetKernelMemory

    device.use("cuda")
    target = Target(capability=(9, 0), multiprocessors=132, torch=(2, 13))
    calls = []

    def twice(x):
        calls.append(x)
        if kind == "recomputed" and len(calls) > 1:
            raise KeyError("not twice")
        return torch.exp(x)

    class Negative(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return -x

        @staticmethod
        def backward(ctx, grad):
            return grad.reshape(7, 7) if kind == "operator" else -grad

    def fail(_):
        raise ZeroDivisionError("in a hook")

    with device.fake_mode(), TraceRecorder(TargetKernelMemory(target)):
        weight = torch.zeros(4, 4, device=DEVICE, requires_grad=True)
        out = Negative.apply(checkpoint(twice, weight, use_reentrant=False))
        if kind == "hook":
            out.register_hook(fail)
        if kind == "leaf":
            weight.register_post_accumulate_grad_hook(fail)
        try:
            out.sum().backward()
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "nothing"


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("none", "nothing"),
        ("hook", "ZeroDivisionError: in a hook"),
        ("leaf", "ZeroDivisionError: in a hook"),
        ("recomputed", "KeyError: 'not twice'"),
        ("operator", "RuntimeError: shape '[7, 7]' is invalid for input of size 16"),
    ],
)
def test_an_error_in_backward_is_raised_where_backward_was_called(forked, kind, said):
    assert forked(_backward, kind) == said
