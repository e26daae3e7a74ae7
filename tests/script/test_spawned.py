"""Processes that a script starts by multiprocessing have no simulated GPU: it is said, at once."""

import pytest

from memcalc.errors import EstimateError

STARTS = """
import torch, torch.multiprocessing as mp

def train(given):
    pass

if __name__ == "__main__":
    mp.set_start_method("spawn", force=True)
    model = torch.nn.Linear(8, 8).cuda()
    {}
"""
SENDS = (
    "process = mp.Process(target=train, args=(model,)); process.start(); process.join()",
    "queue = mp.Queue(); queue.put(model(torch.ones(2, 8).cuda())); queue.get()",
)


@pytest.mark.parametrize("sends", SENDS)
def test_what_has_no_memory_is_sent_to_no_process(run, sends):
    with pytest.raises(EstimateError, match="the script's own process"):
        run(STARTS.format(sends))
