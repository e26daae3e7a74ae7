"""A model for tests to train, written where they run: large, small and odd tensors, one frozen."""

import pathlib

SOURCE = '''
import os, signal, time
import torch

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(100, 64)
        self.layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Linear(128, 3))
        self.frozen = torch.nn.Parameter(torch.ones(7), requires_grad=False)

    def forward(self, ids):
        return self.layers(self.tokens(ids)).float().pow(2).mean() + self.frozen.sum()

class Matrices(Small):
    def __init__(self):
        super().__init__()
        for layer in self.layers:
            layer.bias = None

class Wide(Small):
    def __init__(self):
        super().__init__()
        self.tokens = torch.nn.Embedding(2000, 64)

class Aborts(Small):
    def forward(self, ids):
        os.abort()

class Killed(Small):
    def forward(self, ids):
        os.kill(os.getpid(), signal.SIGKILL)

class Hangs(Small):
    def forward(self, ids):
        time.sleep(999)

class Leaves(Small):
    def forward(self, ids):
        os._exit(7)

class Raises(Small):
    def forward(self, ids):
        raise ValueError("of the model's own")

class Babbles(Small):
    """Writes rubbish to every descriptor it finds, the answer's included."""

    def forward(self, ids):
        for number in range(3, 64):
            try:
                os.write(number, b"{rubbish\\n")
            except OSError:
                pass
        os._exit(0)

class TooLarge(Small):
    def forward(self, ids):
        return super().forward(ids) + torch.empty(1 << 50).sum()

class Spawns(Small):
    """Leaves a process of its own behind, and hangs."""

    def forward(self, ids):
        import subprocess
        subprocess.Popen(["sleep", "998"])
        time.sleep(997)

class Slow(Small):
    def forward(self, ids):
        time.sleep(0.3)
        return super().forward(ids)
'''
INPUT = "ids=int64[4,8]"


def write(folder: pathlib.Path) -> None:
    (folder / "zoo.py").write_text(SOURCE)
