"""stable-baselines3: PPO, which collects by a policy on the GPU.

Requires: stable-baselines3
"""

import gymnasium as gym
from stable_baselines3 import PPO

env = gym.make("CartPole-v1")
model = PPO(
    "MlpPolicy",
    env,
    n_steps=256,
    batch_size=64,
    n_epochs=2,
    device="cuda",
    policy_kwargs=dict(net_arch=[256, 256]),
)
model.learn(total_timesteps=512)
