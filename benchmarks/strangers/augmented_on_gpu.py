"""kornia: augmentation on the GPU, which draws by chance.

Requires: kornia
"""

import kornia
import kornia.augmentation as K
import torch

aug = torch.nn.Sequential(
    K.RandomHorizontalFlip(), K.ColorJitter(0.1, 0.1, 0.1, 0.1, p=0.8), K.RandomAffine(15.0)
).cuda()
model = torch.nn.Sequential(
    torch.nn.Conv2d(3, 32, 3, 2, 1),
    torch.nn.ReLU(),
    torch.nn.AdaptiveAvgPool2d(1),
    torch.nn.Flatten(),
    torch.nn.Linear(32, 10),
).cuda()
opt = torch.optim.SGD(model.parameters(), 0.1)
for i in range(5):
    x = aug(torch.rand(16, 3, 64, 64).cuda())
    loss = (
        torch.nn.functional.cross_entropy(model(x), torch.randint(0, 10, (16,)).cuda())
        + kornia.losses.total_variation(x).mean()
    )
    opt.zero_grad()
    loss.backward()
    opt.step()
