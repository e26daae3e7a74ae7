"""Threads that a script starts have its GPU too."""

from memcalc.records.trace import Component

SCRIPT = """
import queue, threading, time, torch
batches = queue.Queue(2)
class Fetches(threading.Thread):
    def run(self):
        for _ in range(40):
            batches.put(torch.randn(64, 64).cuda() * 2)
        batches.put(None)
fetches = Fetches(daemon=True)
fetches.start()
model = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]).cuda()
optimizer = torch.optim.SGD(model.parameters())
while (batch := batches.get()) is not None:
    model(batch).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
fetches.join()
del batch
print(torch.cuda.memory_allocated(), file=open("said", "w"))
def on_and_on():
    while True:
        torch.zeros_like(torch.ones(4, device="cuda") + 1).abs_()
threading.Thread(target=on_and_on, daemon=True).start()
time.sleep(0.1)
"""


def test_a_thread_copies_batches_while_another_trains(run, tmp_path, capfd):
    found = run(SCRIPT, steps=0)
    assert (found.ending.code, found.ending.steps) == (0, 40)
    assert "Error" not in capfd.readouterr().err
    weights = 4 * (64 * 64 + 64) * 4
    workspaces = 2 * 33 << 20
    assert weights <= int((tmp_path / "said").read_text()) <= weights + workspaces


TRAINS = """
import queue, threading, torch
model = torch.nn.Linear(256, 256).cuda()
optimizer = torch.optim.Adam(model.parameters())
def train():
    while True:
        model(torch.ones(64, 256).cuda()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
threading.Thread(target=train, daemon=True).start()
queue.Queue().get()
"""


def test_a_thread_that_trains_is_followed_and_ends_the_program(run, capfd):
    found = run(TRAINS)
    assert (found.ending.code, found.ending.stopped, found.ending.steps) == (0, True, 3)
    prediction = found.traced.prediction
    assert prediction.components[Component.GRADIENTS] == 4 * 256 * 257
    assert prediction.components[Component.OPTIMIZER_STATE] == 2 * 4 * 256 * 257
    assert "Traceback" not in capfd.readouterr().err
