"""What simulating a script costs: a step, a cold start, and memory of the host.

Usage: simulate.py. Times are of the processor, so other programs disturb less.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

STEP = """
import json, sys, time, torch
from torch import nn
torch.backends.cudnn.enabled = False
layers = [nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True) for _ in range(4)]
model = nn.Sequential(*layers).cuda()
optimizer = torch.optim.AdamW(model.parameters())
times = []
for _ in range(20):
    begin = time.process_time()
    loss = model(torch.randn(8, 64, 256, device="cuda")).square().mean()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    times.append(time.process_time() - begin)
open("times", "w").write(json.dumps(sorted(times)[10]))
"""
IMPORTS = "import torch, transformers; from transformers import LlamaForCausalLM, Trainer\n"
LARGE = (
    IMPORTS
    + """
config = transformers.LlamaConfig(
    hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, num_attention_heads=32,
    num_key_value_heads=4, vocab_size=32000)
ids = list(range(512))
arguments = transformers.TrainingArguments(
    "out", per_device_train_batch_size=2, max_steps=3, bf16=True, save_strategy="no",
    report_to=[], disable_tqdm=True)
Trainer(
    LlamaForCausalLM(config), arguments,
    train_dataset=[{"input_ids": ids, "labels": ids} for _ in range(8)]).train()
"""
)
SIMULATE = (sys.executable, "-m", "memcalc", "simulate", "--gpu", "h100-sxm")


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("step.py").write_text(STEP)
        Path("imports.py").write_text(IMPORTS)
        Path("large.py").write_text(LARGE)
        followed = _step(*SIMULATE, "--steps", "0")
        os.environ["MEMCALC_READS"] = "zeros"  # Values are not followed.
        own = _step(*SIMULATE, "--steps", "0")
        del os.environ["MEMCALC_READS"]
        print(f"a step: {1000 * followed:.1f} ms of processor time, bar 3 x, ", end="")
        print(f"is {followed / own:.1f} x of {1000 * own:.1f} ms with values not followed")
        bare, held = _spent(sys.executable, "imports.py")
        cold, most = _spent(*SIMULATE, "--", "python", "large.py")
        print(
            f"bare imports: {bare:.1f} s; 1B Trainer script, cold: {cold:.1f} s; bar 3 x, ", end=""
        )
        print(f"is {cold / bare:.1f} x")
        print(f"host memory beyond the imports: {(most - held) / 2**20:.0f} MiB; bar 300 MiB")


def _step(*command: str) -> float:
    # What stands somewhere before a simulated script writes there is left as it was.
    Path("times").unlink(missing_ok=True)
    subprocess.run([*command, "--", "python", "step.py"], check=True, capture_output=True)
    return float(json.loads(Path("times").read_text()))


def _spent(*command: str) -> tuple[float, int]:
    """Processor seconds of a command with its children, and bytes of its largest process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    timed = [sys.executable, "-c", _WATCH, *command]
    done = subprocess.run(timed, check=True, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent, int(done.stdout.rsplit("\n", 2)[-2])


_WATCH = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
print(1024 * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""

if __name__ == "__main__":
    main()
