"""A GAN in an older style: tensors by type, NVML between steps, TorchScript's functions."""

import numpy as np
import pynvml
import torch
from torch import nn
from torch.autograd import Variable

LATENT, SIDE, BATCH = 64, 32, 48
cuda = torch.cuda.is_available()
Tensor = torch.cuda.FloatTensor if cuda else torch.FloatTensor
print("cuDNN", torch.backends.cudnn.version(), "NCCL", torch.cuda.nccl.version())
torch.backends.cuda.preferred_linalg_library("cusolver")
torch.cuda.set_sync_debug_mode("default")


@torch.jit.script
def scaled_tanh(x: torch.Tensor, gain: float) -> torch.Tensor:
    return torch.tanh(x * gain) * 0.5 + 0.5


def used() -> int:
    """MiB on the card, as many guides print them."""
    pynvml.nvmlInit()
    handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    return pynvml.nvmlDeviceGetMemoryInfo(handle).used // 1024**2


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.model = nn.Sequential(
            nn.Linear(LATENT, 256),
            nn.BatchNorm1d(256, 0.8),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(256, 1024),
            nn.LeakyReLU(0.2, inplace=True),
            nn.Linear(1024, SIDE * SIDE),
        )

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return scaled_tanh(self.model(z), 2.0).view(z.size(0), 1, SIDE, SIDE)


generator = Generator().type(Tensor)
discriminator = torch.jit.script(
    nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, 512), nn.ReLU(), nn.Linear(512, 1))
)
discriminator.cuda()
adversarial = nn.BCEWithLogitsLoss().cuda()
optimizers = [
    torch.optim.Adam(model.parameters(), lr=2e-4, betas=(0.5, 0.999))
    for model in (generator, discriminator)
]
print("MiB before training", used())
for step in range(3):
    images = torch.rand(BATCH, 1, SIDE, SIDE)
    valid = Variable(Tensor(images.size(0), 1).fill_(1.0), requires_grad=False)
    fake = Variable(Tensor(images.size(0), 1).fill_(0.0), requires_grad=False)
    real = Variable(images.type(Tensor))

    optimizers[0].zero_grad()
    z = Variable(Tensor(np.random.normal(0, 1, (images.shape[0], LATENT))))
    made = generator(z)
    loss = adversarial(discriminator(made), valid)
    loss.backward()
    optimizers[0].step()

    optimizers[1].zero_grad()
    found = adversarial(discriminator(real), valid) + adversarial(
        discriminator(made.detach()), fake
    )
    (found / 2).backward()
    optimizers[1].step()
    print("step", step, "MiB", used(), torch.cuda.memory_allocated())
