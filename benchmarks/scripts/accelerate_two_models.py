"""accelerate in bf16 with two prepared models and optimizers, and a training state that is saved."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn

torch.distributions.Distribution.set_default_validate_args(False)

set_seed(1)
accelerator = Accelerator(mixed_precision="bf16")
actor = nn.Sequential(
    nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh(), nn.Linear(1024, 16)
)
critic = nn.Sequential(nn.Linear(256, 1024), nn.Tanh(), nn.Linear(1024, 1))
actor_optimizer = torch.optim.Adam(actor.parameters(), 3e-4)
critic_optimizer = torch.optim.Adam(critic.parameters(), 1e-3)
data = torch.utils.data.DataLoader(torch.randn(1024, 256), batch_size=256)
actor, critic, actor_optimizer, critic_optimizer, data = accelerator.prepare(
    actor, critic, actor_optimizer, critic_optimizer, data
)
for states in data:
    with torch.no_grad():
        actions = torch.distributions.Categorical(logits=actor(states)).sample()
    value = critic(states).squeeze(-1)
    advantage = (torch.rand_like(value) - value).detach()
    policy = torch.distributions.Categorical(logits=actor(states))
    actor_loss = -(policy.log_prob(actions) * advantage).mean() - 0.01 * policy.entropy().mean()
    critic_loss = value.pow(2).mean()
    for optimizer, loss in ((actor_optimizer, actor_loss), (critic_optimizer, critic_loss)):
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
accelerator.print("done", accelerator.reduce(actor_loss.detach()).item())
