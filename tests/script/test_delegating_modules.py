"""A module that hands unknown attributes on to another is looked at without asking it for any."""

DELEGATES = """
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            # Here it has no inner module yet, and asking for any attribute would not end.
            inner(torch.zeros(1, 256, device="cuda"))
            self.inner = inner

        def __getattr__(self, name):
            try:
                return super().__getattr__(name)
            except AttributeError:
                return getattr(self.inner, name)

    model = Wrapped(torch.nn.Linear(256, 256).cuda())
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model.inner(torch.randn(8, 256, device="cuda")).sum().backward()
        optimizer.step()
"""


def test_a_module_is_known_without_asking_it_for_attributes(run):
    found = run(DELEGATES, steps=0)
    assert found.ending.code == 0
    assert found.traced.prediction.parameters == 256 * 257
