"""Compiled programs over the stub driver: each is simulated, and its allocated peak written down.

Usage: compiled_programs.py -o FILE [NAME ...]; all without names. Peaks that FILE has of others
stay. The program of a name also runs by itself, as on a GPU: compiled_programs.py --run NAME.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

GPU = "a100-40gb"
TIMEOUT = 1200
PACKAGES = ("torch", "triton", "transformers", "peft", "bitsandbytes")
PROGRAMS: dict[str, Callable[[], None]] = {}


def program(run: Callable[[], None]) -> Callable[[], None]:
    PROGRAMS[run.__name__] = run
    return run


def train(model: Any, batch: Callable[[int], dict[str, Any]], steps: int = 4, **how: Any) -> None:
    import torch

    compiled = torch.compile(model, **how) if how.pop("whole", True) else model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    for step in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            found = compiled(**batch(step))
        loss = found.loss if hasattr(found, "loss") else found
        loss.float().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def gpt2(**more: Any) -> Any:
    import transformers

    sizes = {"n_layer": 2, "n_embd": 256, "n_head": 4, "vocab_size": 1000, "bos_token_id": 0}
    config = transformers.GPT2Config(**sizes, eos_token_id=0, use_cache=False, **more)
    return transformers.GPT2LMHeadModel(config).cuda()


def llama() -> Any:
    import transformers

    sizes = {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 1000}
    config = transformers.LlamaConfig(
        **sizes, num_hidden_layers=2, num_attention_heads=4, use_cache=False
    )
    return transformers.LlamaForCausalLM(config)


def tokens(_: int = 0, length: int = 128) -> dict[str, Any]:
    import torch

    ids = torch.randint(0, 1000, (4, length), device="cuda")
    return {"input_ids": ids, "labels": ids}


def pictures(key: str = "x", size: int = 64) -> Callable[[int], dict[str, Any]]:
    import torch

    return lambda _: {key: torch.randn(4, 3, size, size, device="cuda")}


@program
def gpt() -> None:
    train(gpt2(), tokens)


@program
def checkpointed() -> None:
    model = gpt2()
    model.gradient_checkpointing_enable({"use_reentrant": False})
    train(model.train(), tokens)


@program
def growing_shapes() -> None:
    train(gpt2(), lambda step: tokens(length=64 + 16 * step))


@program
def reduce_overhead() -> None:
    train(gpt2(), tokens, mode="reduce-overhead")


@program
def max_autotune() -> None:
    train(gpt2(), tokens, mode="max-autotune")


@program
def regional() -> None:
    model = gpt2()
    for block in model.transformer.h:
        block.compile()
    train(model, tokens, whole=False)


@program
def graph_breaks() -> None:
    import torch

    class Breaks(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(512, 512), torch.nn.Linear(512, 512)

        def forward(self, x: Any) -> Any:
            x = torch.nn.functional.gelu(self.first(x))
            print("here the graph breaks")
            return torch.nn.functional.gelu(self.second(x)).mean()

    train(Breaks().cuda(), lambda _: {"x": torch.randn(256, 512, device="cuda")})


@program
def resnet() -> None:
    import torch
    import transformers

    config = transformers.ResNetConfig(
        embedding_size=16, hidden_sizes=[32, 64], depths=[1, 1], layer_type="basic"
    )
    model = transformers.ResNetForImageClassification(config).cuda()
    labels = torch.zeros(4, dtype=torch.long, device="cuda")
    train(model, lambda step: {**pictures("pixel_values")(step), "labels": labels})


@program
def qlora() -> None:
    import peft
    import torch
    import transformers

    with tempfile.TemporaryDirectory() as folder:
        llama().save_pretrained(folder)
        four = transformers.BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=torch.bfloat16
        )
        base = transformers.AutoModelForCausalLM.from_pretrained(
            folder, quantization_config=four, device_map={"": 0}
        )
    base = peft.prepare_model_for_kbit_training(base, use_gradient_checkpointing=False)
    adapted = peft.get_peft_model(base, peft.LoraConfig(target_modules="all-linear"))
    train(adapted, tokens)


@program
def trainer() -> None:
    import transformers

    ids = list(range(128))
    with tempfile.TemporaryDirectory() as folder:
        arguments = transformers.TrainingArguments(
            folder,
            max_steps=4,
            per_device_train_batch_size=4,
            bf16=True,
            torch_compile=True,
            report_to=[],
            save_strategy="no",
            disable_tqdm=True,
        )
        data = [{"input_ids": ids, "labels": ids}] * 16
        transformers.Trainer(gpt2(), arguments, train_dataset=data).train()


@program
def flex_attention() -> None:
    import torch
    from torch.nn.attention import flex_attention as flex

    class Attends(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(256, 768)

        def forward(self, x: Any) -> Any:
            q, k, v = self.inner(x).view(4, 128, 3, 4, 64).permute(2, 0, 3, 1, 4)
            return flex.flex_attention(q, k, v).square().mean()

    train(Attends().cuda(), lambda _: {"x": torch.randn(4, 128, 256, device="cuda")})


def simulated(name: str) -> dict[str, Any]:
    """Simulate one program; what it took, or the last line that it wrote to standard error."""
    command = [
        *(sys.executable, "-m", "memcalc", "simulate", "--gpu", GPU, "--steps", "0"),
        *("--format", "json", "--", "python", str(Path(__file__).resolve()), "--run", name),
    ]
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
    print(f"{name}: {time.monotonic() - begin:.0f} s, exit code {done.returncode}", file=sys.stderr)
    if done.returncode:
        return {"failed": (done.stderr.strip().splitlines() or [""])[-1]}
    peak = json.loads(done.stdout)["peak"]
    return {rung: peak[rung] for rung in ("requested", "allocated", "reserved")}


def main(file: str, *names: str) -> None:
    import tables

    path = Path(file)
    known = json.loads(path.read_text()) if path.exists() else {"programs": {}}
    known["gpu"] = GPU
    for name in names or PROGRAMS:
        known["programs"][name] = simulated(name)
        known["versions"] = tables.versions(PACKAGES)
        path.write_text(json.dumps(known, indent=1) + "\n")
    failed = [name for name, found in known["programs"].items() if "failed" in found]
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        PROGRAMS[sys.argv[2]]()
    else:
        main(*sys.argv[2:])
