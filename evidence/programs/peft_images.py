"""What peft's comparison of its methods trains for pictures: FLUX.2-klein-base-4B, two a batch.

    peft_images.py [ADAPTER]

``ADAPTER`` is what the experiment's adapter_config.json sets; without one all weights are trained.
Texts and pictures are encoded before training, so that the training holds neither encoder; their
results are made up here. The model goes to the GPU, gets its adapter there, goes back to the host
and to the GPU again once the optimizer is there, as the source's script does it. Evaluations, which
the source does not count, are left out.
"""

import json
import sys

import torch
from diffusers import FlowMatchEulerDiscreteScheduler, Flux2KleinPipeline, Flux2Transformer2DModel
from diffusers.training_utils import (
    compute_density_for_timestep_sampling,
    compute_loss_weighting_for_sd3,
)
from peft import get_peft_config, get_peft_model
from transformers import Dinov2Config, Dinov2Model

STEPS, BATCH, PICTURES, REPEATS = 12, 2, 14, 1000
TOKENS, TEXT, CHANNELS, SIDE = 512, 7680, 128, 32
"""Of a text: its length, and three layers of 2,560; of a picture of 512 pixels, packed by 16."""
MODEL = {
    "in_channels": CHANNELS,
    "num_layers": 5,
    "num_single_layers": 20,
    "attention_head_dim": 128,
    "num_attention_heads": 24,
    "joint_attention_dim": TEXT,
    "guidance_embeds": False,
}
"""black-forest-labs/FLUX.2-klein-base-4B, transformer/config.json: 3,875,544,576 weights."""


def base() -> torch.nn.Module:
    """The model on the host."""
    torch.set_default_dtype(torch.bfloat16)
    model = Flux2Transformer2DModel(**MODEL)
    torch.set_default_dtype(torch.float32)
    model.enable_gradient_checkpointing()
    return model


def prepared(adapter: dict) -> torch.nn.Module:
    """The model with its adapter, on the host."""
    model = base().to("cuda")
    if adapter:
        model = get_peft_model(model, get_peft_config(adapter), autocast_adapter_dtype=True)
    else:
        model.requires_grad_(True)
    model.to("cpu")
    torch.cuda.empty_cache()
    return model.train()


class Encoded:
    """What the encoders made of fourteen pictures and their texts."""

    def __init__(self) -> None:
        narrow = {"device": "cuda", "dtype": torch.bfloat16}
        self.texts = torch.zeros(PICTURES, TOKENS, TEXT, **narrow)
        self.text_ids = torch.zeros(PICTURES, TOKENS, 4, device="cuda", dtype=torch.long)
        self.pictures = torch.zeros(PICTURES, CHANNELS, SIDE, SIDE, **narrow)

    def take(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """A batch: pictures, texts, and where the words stand."""
        pictures = self.pictures.index_select(0, numbers)
        texts = self.texts.index_select(0, numbers)
        return pictures, texts, self.text_ids.index_select(0, numbers)


def sigmas_of(schedule: FlowMatchEulerDiscreteScheduler, indices: torch.Tensor) -> torch.Tensor:
    """How much noise each picture gets, as (B, 1, 1, 1)."""
    sigmas = schedule.sigmas.to(device="cpu", dtype=torch.bfloat16)
    return sigmas[indices].flatten()[:, None, None, None]


def loss_of(
    model: torch.nn.Module,
    schedule: FlowMatchEulerDiscreteScheduler,
    batch: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    drawn: torch.Generator,
) -> torch.Tensor:
    """Flow matching: what was added to the pictures, less the pictures."""
    latents, texts, text_ids = batch
    image_ids = Flux2KleinPipeline._prepare_latent_ids(latents).to(latents.device)
    noise = torch.randn_like(latents, generator=drawn)
    u = compute_density_for_timestep_sampling("none", BATCH, 0.0, 1.0, 1.29)
    indices = (u * schedule.config.num_train_timesteps).long()
    times = schedule.timesteps[indices].to(device=latents.device)
    sigmas = sigmas_of(schedule, indices).to("cuda")
    noisy = (1.0 - sigmas) * latents + sigmas * noise
    packed = Flux2KleinPipeline._pack_latents(noisy)
    said = model(
        hidden_states=packed,
        timestep=times / 1000,
        guidance=None,
        encoder_hidden_states=texts,
        txt_ids=text_ids,
        img_ids=image_ids,
        return_dict=False,
    )[0]
    said = said[:, : packed.size(1)]
    said = Flux2KleinPipeline._unpack_latents_with_ids(said, image_ids)
    weighting = compute_loss_weighting_for_sd3("none", sigmas=sigmas)
    target = noise - latents
    square = weighting.float() * (said.float() - target.float()) ** 2
    return torch.mean(square.reshape(target.shape[0], -1), 1).mean()


def main(*words: str) -> None:
    """Train."""
    adapter = json.loads(words[0]) if words else {}
    torch.nn.Linear(1, 1).to("cuda")
    model = prepared(adapter)
    drawn = torch.Generator(device="cuda").manual_seed(0)
    order = [torch.randperm(PICTURES, generator=drawn, device="cuda") for _ in range(REPEATS)]
    order = torch.cat(order)
    judge = Dinov2Model(Dinov2Config()).to("cuda").eval()
    schedule = FlowMatchEulerDiscreteScheduler()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=1e-4)
    encoded = Encoded()
    model.to("cuda")
    torch.cuda.empty_cache()
    for step in range(1, STEPS + 1):
        numbers = order[(step - 1) * BATCH : step * BATCH].to(device="cuda", dtype=torch.long)
        batch = encoded.take(numbers)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(model, schedule, batch, drawn)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if adapter.get("peft_type") == "ADALORA":
            model.base_model.update_and_allocate(step)
        loss = loss.detach()
        loss.item()
    del judge


if __name__ == "__main__":
    main(*sys.argv[1:])
