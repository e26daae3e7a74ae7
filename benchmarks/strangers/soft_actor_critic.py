"""stable-baselines3: SAC with a replay buffer and target networks.

Requires: stable-baselines3
"""

import gymnasium as gym
from stable_baselines3 import SAC

env = gym.make("Pendulum-v1")
model = SAC(
    "MlpPolicy", env, learning_starts=100, device="cuda", policy_kwargs=dict(net_arch=[256, 256])
)
model.learn(total_timesteps=150)
