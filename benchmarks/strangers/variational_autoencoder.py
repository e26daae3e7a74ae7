"""Pyro: stochastic variational inference.

Requires: pyro-ppl
"""

import pyro
import pyro.distributions as dist
import torch
from pyro.infer import SVI, Trace_ELBO

pyro.clear_param_store()


class VAE(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.enc = torch.nn.Sequential(
            torch.nn.Linear(784, 400), torch.nn.Softplus(), torch.nn.Linear(400, 100)
        )
        self.dec = torch.nn.Sequential(
            torch.nn.Linear(50, 400),
            torch.nn.Softplus(),
            torch.nn.Linear(400, 784),
            torch.nn.Sigmoid(),
        )

    def model(self, x):
        pyro.module("dec", self.dec)
        with pyro.plate("data", x.shape[0]):
            z = pyro.sample(
                "z", dist.Normal(x.new_zeros(len(x), 50), x.new_ones(len(x), 50)).to_event(1)
            )
            pyro.sample("obs", dist.Bernoulli(self.dec(z), validate_args=False).to_event(1), obs=x)

    def guide(self, x):
        pyro.module("enc", self.enc)
        with pyro.plate("data", x.shape[0]):
            m, s = self.enc(x).chunk(2, -1)
            pyro.sample("z", dist.Normal(m, s.exp()).to_event(1))


vae = VAE().cuda()
svi = SVI(vae.model, vae.guide, pyro.optim.Adam({"lr": 1e-3}), loss=Trace_ELBO())
for i in range(5):
    print(svi.step(torch.rand(128, 784).cuda()))
