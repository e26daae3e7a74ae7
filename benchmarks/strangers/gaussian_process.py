"""GPyTorch: an exact Gaussian process.

Requires: gpytorch
"""

import gpytorch
import torch


class GP(gpytorch.models.ExactGP):
    def __init__(self, x, y, lik):
        super().__init__(x, y, lik)
        self.mean_module = gpytorch.means.ConstantMean()
        self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

    def forward(self, x):
        return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))


x = torch.linspace(0, 1, 400).cuda()
y = torch.sin(6 * x)
lik = gpytorch.likelihoods.GaussianLikelihood().cuda()
model = GP(x, y, lik).cuda()
model.train()
lik.train()
opt = torch.optim.Adam(model.parameters(), lr=0.1)
mll = gpytorch.mlls.ExactMarginalLogLikelihood(lik, model)
for i in range(5):
    opt.zero_grad()
    loss = -mll(model(x), y)
    loss.backward()
    opt.step()
