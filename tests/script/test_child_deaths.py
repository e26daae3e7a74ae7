"""Tensors are shared with child processes, and a child that a signal ends is reported."""

import subprocess
import sys

import pytest

SHARES = """
import os, signal, torch
import torch.multiprocessing as mp

def act(queue, net):
    queue.put(net(torch.ones(4, 256, device="cuda")).shape)

def die(queue):
    os.kill(os.getpid(), signal.SIGSEGV)

if __name__ == "__main__":
    spawn = mp.get_context("spawn")
    queue, net = spawn.Queue(), torch.nn.Linear(256, 256).cuda()
    spawn.Process(target=act, args=(queue, net)).start()
    print("child said", queue.get())
    stopped = spawn.Process(target=die, args=(queue,))
    stopped.start()
    stopped.join()
    fork = mp.get_context("fork")
    fork.Process(target=die, args=(queue,)).start()
    queue.get()
"""


@pytest.mark.nightly
def test_a_child_gets_tensors_and_a_script_that_waits_for_a_dead_one_ends(tmp_path):
    (tmp_path / "train.py").write_text(SHARES)
    done = subprocess.run(
        [sys.executable, "-m", "memcalc", "simulate", "--", "python", "train.py"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        timeout=120,
    )
    assert "child said torch.Size([4, 256])" in done.stderr
    assert done.stderr.count("was ended by SIGSEGV.") == 2
    assert "train.py:20" in done.stderr
    assert "waits for it and is ended" in done.stderr
    assert done.returncode == 1
    assert "0.3" in done.stdout  # of the model, which is counted once
