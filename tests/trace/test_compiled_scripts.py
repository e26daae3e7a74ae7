"""TorchScript compiles what calls functions that something stands for here."""

import torch


def scripted():
    from memcalc.trace.operators import patches

    patches.install_once()

    def moved(x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor(2.0)

    class Held:
        def __init__(self, x: torch.Tensor):
            # The compiler finds this name in the frame that compiles.
            self.x = moved(x)

        def get(self) -> torch.Tensor:
            return self.x

    return torch.jit.script(Held)(torch.zeros(())).get().item()


def test_a_call_of_torch_tensor_is_compiled_as_pytorch_has_it(forked):
    assert forked(scripted) == 2
