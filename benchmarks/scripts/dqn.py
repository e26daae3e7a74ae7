"""Deep Q-learning: a replay buffer on the host, actions read back, a target network."""

import random
from collections import deque

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"


def network():
    return nn.Sequential(
        nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 6)
    )


policy, target = network().to(device), network().to(device)
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.RAdam(policy.parameters(), lr=1e-4)
buffer = deque(maxlen=1000)
state = torch.zeros(64)
for step in range(80):
    if random.random() < 0.2:
        action = random.randrange(6)
    else:
        with torch.no_grad():
            action = policy(state.to(device).unsqueeze(0)).max(1).indices.item()
    following = torch.randn(64)
    buffer.append((state, action, random.random(), following))
    state = following
    if len(buffer) >= 64 and step % 4 == 0:
        states, actions, rewards, nexts = zip(*random.sample(list(buffer), 64))
        states, nexts = torch.stack(states).to(device), torch.stack(nexts).to(device)
        actions = torch.tensor(actions, device=device).unsqueeze(1)
        rewards = torch.tensor(rewards, device=device)
        q = policy(states).gather(1, actions).squeeze(1)
        with torch.no_grad():
            best = target(nexts).max(1).values
        loss = nn.functional.smooth_l1_loss(q, rewards + 0.99 * best)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_value_(policy.parameters(), 100)
        optimizer.step()
        for t, p in zip(target.parameters(), policy.parameters()):
            t.data.copy_(0.005 * p.data + 0.995 * t.data)
