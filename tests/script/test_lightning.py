"""Scripts of Lightning start their processes by themselves: the first is simulated."""

import importlib.util
import textwrap

import pytest

from memcalc.records.trace import Component
from memcalc.script.simulate import plan_of, simulate

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("lightning") is None, reason="runs Lightning's own code"
)
TRAINER = """
    import lightning, torch

    class Model(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])

        def training_step(self, batch, number):
            return self.layers(batch[0]).square().mean()

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters())

    data = torch.utils.data.TensorDataset(torch.ones(64, 512))
    lightning.Trainer(
        accelerator="gpu", devices="auto", max_steps=3, logger=False, enable_checkpointing=False
    ).fit(Model(), torch.utils.data.DataLoader(data, 4))
    assert torch.cuda.device_count() == 2
"""
FABRIC = """
    import lightning, torch

    fabric = lightning.Fabric(accelerator="cuda", devices=2, strategy="fsdp")
    fabric.launch()
    model = torch.nn.Sequential(*[torch.nn.Linear(512, 512) for _ in range(4)])
    model = fabric.setup_module(model)
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters()))
    for _ in range(3):
        fabric.backward(model(torch.ones(4, 512, device=fabric.device)).square().mean())
        optimizer.step()
        optimizer.zero_grad()
"""
WEIGHTS = 4 * 4 * (512 * 512 + 512)


@pytest.mark.parametrize(("script", "share"), [(TRAINER, 1), (FABRIC, 2)], ids=["ddp", "fsdp"])
def test_of_the_processes_that_lightning_starts_the_first_runs(
    parent, tmp_path, monkeypatch, script, share
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(textwrap.dedent(script))
    found = simulate(plan_of(["python", "train.py"], steps=0, gpu="2xt4"), parent)
    assert (found.ending.code, found.ending.steps) == (0, 3)
    prediction = found.traced.prediction
    assert prediction.components[Component.OPTIMIZER_STATE] == 2 * WEIGHTS // share
    said = "; ".join(prediction.assumptions)
    assert "of 2 processes that Lightning starts" in said
    assert "rank 0 of 2" in said
    assert "finds one" not in said
