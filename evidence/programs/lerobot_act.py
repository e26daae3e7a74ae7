"""Steps of LeRobot's policy ACT over two cameras of 480 x 640, to choose a batch.

    lerobot_act.py BATCH [planned|tried]

Source: a public repository's DECISIONS.md (LeRobot 0.5.0, ACT as it comes, the data set
svla_so101_pickplace: two cameras, six joints); each batch a process of its own, fp32. What ACT is:
LeRobot's policies/act (modeling_act.py, configuration_act.py): chunks of 100 actions; one ResNet-18
with frozen batch norms for all cameras; 512 wide, 8 heads, 3,200 inside, ReLU, dropout 0.1, norms
behind; an encoder of a variational kind (4 layers over a class token, the state and the actions),
an encoder of 4 layers over 602 tokens, and a decoder of one; 52 million parameters.

What decides memory: AdamW; every attention is asked for its weights too, as MultiheadAttention
gives them unless told otherwise, which writes them out. The training script of LeRobot has cuDNN
try its engines; whether the measurement did, and which engines were kept, is not known:
``planned`` as without a trial, or all that it ``tried``.
"""

import sys

import torch
from torch import nn
from torch.nn import functional

DIM, HEADS, INNER, DROP, CHUNK, JOINTS, LATENT = 512, 8, 3200, 0.1, 100, 6, 32
CAMERAS, HEIGHT, WIDTH = 2, 480, 640
STEPS = 4


class Layer(nn.Module):
    """Attention to itself, to another sequence where there is one, and two linear layers."""

    def __init__(self, *, crossed: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, HEADS, dropout=DROP)
        self.cross = nn.MultiheadAttention(DIM, HEADS, dropout=DROP) if crossed else None
        self.first, self.second = nn.Linear(DIM, INNER), nn.Linear(INNER, DIM)
        count = 3 if crossed else 2
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(count))
        self.drops = nn.ModuleList(nn.Dropout(DROP) for _ in range(count))
        self.inner_drop = nn.Dropout(DROP)

    def forward(
        self,
        x: torch.Tensor,
        places: torch.Tensor,
        other: torch.Tensor | None = None,
        other_places: torch.Tensor | None = None,
        absent: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Tokens to tokens."""
        query = x + places
        found = self.attention(query, query, value=x, key_padding_mask=absent)[0]
        x = self.norms[0](x + self.drops[0](found))
        if self.cross is not None:
            found = self.cross(query=x + places, key=other + other_places, value=other)[0]
            x = self.norms[1](x + self.drops[1](found))
        found = self.second(self.inner_drop(functional.relu(self.first(x))))
        return self.norms[-1](x + self.drops[-1](found))


class Act(nn.Module):
    """Pictures and joints to the actions that follow."""

    def __init__(self) -> None:
        super().__init__()
        from torchvision.models import resnet18
        from torchvision.ops.misc import FrozenBatchNorm2d

        network = resnet18(weights=None, norm_layer=FrozenBatchNorm2d)
        self.backbone = nn.Sequential(*list(network.children())[:-2])
        self.token = nn.Embedding(1, DIM)
        self.state_in, self.action_in = nn.Linear(JOINTS, DIM), nn.Linear(JOINTS, DIM)
        self.latent_out = nn.Linear(DIM, 2 * LATENT)
        self.before = nn.ModuleList(Layer(crossed=False) for _ in range(4))
        self.encoder = nn.ModuleList(Layer(crossed=False) for _ in range(4))
        self.decoder = nn.ModuleList([Layer(crossed=True)])
        self.last_norm = nn.LayerNorm(DIM)
        self.state, self.latent = nn.Linear(JOINTS, DIM), nn.Linear(LATENT, DIM)
        self.picture = nn.Conv2d(512, DIM, 1)
        self.places = nn.Embedding(2, DIM)
        self.asked = nn.Embedding(CHUNK, DIM)
        self.head = nn.Linear(DIM, JOINTS)
        self.register_buffer("rows", torch.zeros(1, CHUNK + 2, DIM))

    def latents(
        self, state: torch.Tensor, actions: torch.Tensor, absent: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and logarithm of the variance."""
        token = self.token.weight.unsqueeze(0).repeat(len(state), 1, 1)
        x = [token, self.state_in(state).unsqueeze(1), self.action_in(actions)]
        x = torch.cat(x, dim=1).permute(1, 0, 2)
        places = self.rows.clone().detach().permute(1, 0, 2)
        there = torch.full((len(state), 2), False, device=state.device)
        absent = torch.cat([there, absent], dim=1)
        for layer in self.before:
            x = layer(x, places, absent=absent)
        mean, spread = self.latent_out(x[0]).chunk(2, dim=1)
        return mean, spread

    def forward(
        self,
        pictures: list[torch.Tensor],
        state: torch.Tensor,
        actions: torch.Tensor,
        absent: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Actions, and what their latents are."""
        mean, spread = self.latents(state, actions, absent)
        drawn = mean + spread.div(2).exp() * torch.randn_like(mean)
        tokens = [self.latent(drawn), self.state(state)]
        places = list(self.places.weight.unsqueeze(1))
        for picture in pictures:
            features = self.picture(self.backbone(picture))
            grid = torch.zeros_like(features[:1]).flatten(2).permute(2, 0, 1)
            tokens += list(features.flatten(2).permute(2, 0, 1))
            places += list(grid)
        x, places = torch.stack(tokens), torch.stack(places)
        for layer in self.encoder:
            x = layer(x, places)
        asked = self.asked.weight.unsqueeze(1)
        y = torch.zeros((CHUNK, len(state), DIM), dtype=x.dtype, device=x.device)
        for layer in self.decoder:
            y = layer(y, asked, x, places)
        return self.head(self.last_norm(y).transpose(0, 1)), mean, spread


def main(batch: str, engines: str = "planned") -> None:
    """Train."""
    torch.backends.cudnn.benchmark = engines == "tried"
    size = int(batch)
    model = Act().to("cuda").train()
    print(f"{sum(one.numel() for one in model.parameters())} parameters")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=1e-4)
    shape = (size, 3, HEIGHT, WIDTH)
    pictures = [torch.rand(shape, device="cuda") for _ in range(CAMERAS)]
    state = torch.randn(size, JOINTS, device="cuda")
    actions = torch.randn(size, CHUNK, JOINTS, device="cuda")
    absent = torch.zeros(size, CHUNK, dtype=torch.bool, device="cuda")
    for _ in range(STEPS):
        found, mean, spread = model(pictures, state, actions, absent)
        missed = functional.l1_loss(actions, found, reduction="none")
        missed = (missed * ~absent.unsqueeze(-1)).mean()
        apart = (-0.5 * (1 + spread - mean.pow(2) - spread.exp())).sum(-1).mean()
        (missed + 10 * apart).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        optimizer.zero_grad()
    allocated, reserved = torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved()
    print(f"allocated {allocated}, reserved {reserved}")


if __name__ == "__main__":
    main(*sys.argv[1:])
