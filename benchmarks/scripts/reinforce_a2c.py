"""Policy gradients on a hand-made environment: REINFORCE with a value baseline, entropy, GAE."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Categorical, Normal


class World:
    """A point that is to be pushed to the origin."""

    def __init__(self, count):
        self.count, self.draw = count, np.random.default_rng(0)

    def reset(self):
        self.at = self.draw.normal(size=(self.count, 8)).astype(np.float32)
        return self.at

    def step(self, choice, push):
        self.at[np.arange(self.count), choice % 8] += push[:, 0]
        return self.at, -np.abs(self.at).sum(1), self.draw.random(self.count) < 0.05


class Agent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 256), nn.Tanh(), nn.Linear(256, 256), nn.Tanh())
        self.choice, self.value = nn.Linear(256, 8), nn.Linear(256, 1)
        self.mean, self.log_std = nn.Linear(256, 1), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        hidden = self.body(x)
        push = Normal(self.mean(hidden), self.log_std.exp())
        return Categorical(logits=self.choice(hidden)), push, self.value(hidden).squeeze(-1)


device = torch.device("cuda")
world, agent = World(64), Agent().to(device)
optimizer = torch.optim.RMSprop(agent.parameters(), lr=7e-4, eps=1e-5, alpha=0.99)
seen = world.reset()
for update in range(3):
    logs, values, rewards, masks, entropies = [], [], [], [], []
    for _ in range(24):
        policy, push, value = agent(torch.from_numpy(seen).to(device))
        action, force = policy.sample(), push.sample()
        seen, reward, done = world.step(action.cpu().numpy(), force.cpu().numpy())
        logs.append(policy.log_prob(action) + push.log_prob(force).squeeze(-1))
        entropies.append(policy.entropy())
        values.append(value)
        rewards.append(torch.as_tensor(reward, dtype=torch.float32, device=device))
        masks.append(torch.as_tensor(1.0 - done, dtype=torch.float32, device=device))
    with torch.no_grad():
        following = agent(torch.from_numpy(seen).to(device))[2]
    advantage, gained = torch.zeros(64, device=device), []
    for t in reversed(range(24)):
        after = following if t == 23 else values[t + 1].detach()
        delta = rewards[t] + 0.99 * after * masks[t] - values[t].detach()
        advantage = delta + 0.99 * 0.95 * masks[t] * advantage
        gained.insert(0, advantage)
    gained, values, logs = torch.stack(gained), torch.stack(values), torch.stack(logs)
    normal = (gained - gained.mean()) / (gained.std() + 1e-8)
    loss = -(normal * logs).mean() + 0.5 * F.mse_loss(values, gained + values.detach())
    loss = loss - 0.01 * torch.stack(entropies).mean()
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
    optimizer.step()
    print(update, loss.item(), torch.stack(rewards).mean().item())
