"""TorchRL: DQN with a delayed network and a replay buffer.

Requires: torchrl tensordict
"""

import torch
from tensordict import TensorDict
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, QValueActor
from torchrl.objectives import DQNLoss, SoftUpdate

net = MLP(in_features=8, out_features=4, num_cells=[256, 256], device="cuda")
actor = QValueActor(net, in_keys=["observation"], action_space="one-hot")
loss_fn = DQNLoss(actor, action_space="one-hot", delay_value=True)
loss_fn.make_value_estimator(gamma=0.99)
upd = SoftUpdate(loss_fn, eps=0.99)
opt = torch.optim.Adam(loss_fn.parameters(), 1e-3)
buf = TensorDictReplayBuffer(storage=LazyTensorStorage(1000), batch_size=128)
n = 500
buf.extend(
    TensorDict(
        {
            "observation": torch.randn(n, 8),
            "action": torch.nn.functional.one_hot(torch.randint(0, 4, (n,)), 4),
            ("next", "observation"): torch.randn(n, 8),
            ("next", "reward"): torch.randn(n, 1),
            ("next", "done"): torch.zeros(n, 1, dtype=torch.bool),
            ("next", "terminated"): torch.zeros(n, 1, dtype=torch.bool),
        },
        [n],
    )
)
for i in range(5):
    loss = loss_fn(buf.sample().to("cuda"))["loss"]
    loss.backward()
    opt.step()
    opt.zero_grad()
    upd.step()
