"""Command lines of packages launch by accelerate's functions: what they start is simulated."""

import pytest

from memcalc.errors import EstimateError

LAUNCHES = """
import sys
from accelerate.commands.launch import launch_command, launch_command_parser
launch_command(launch_command_parser().parse_args(sys.argv[1:]))
print("launched", file=open("said", "a"))
"""
TRAINS = """
import os, sys, torch
model = torch.nn.Linear(1024, 1024, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters())
with torch.autocast("cuda", torch.bfloat16):
    model(torch.ones(8, 1024, device="cuda")).sum().backward()
optimizer.step()
here = (__name__, sys.argv[1:], os.environ["ACCELERATE_MIXED_PRECISION"])
print(*here, file=open("said", "a"))
sys.exit(int(sys.argv[1]))
"""


@pytest.fixture
def launched(run, tmp_path):
    (tmp_path / "tune.py").write_text(TRAINS)
    return lambda *words: run(LAUNCHES, *words)


@pytest.mark.parametrize("named", [("tune.py",), ("-m", "tune")])
def test_what_is_launched_runs_in_the_process_that_has_the_gpu(launched, tmp_path, named):
    found = launched("--mixed_precision", "bf16", *named, "0", "--more")
    assert (found.ending.code, found.ending.steps) == (0, 1)
    assert found.traced.prediction.peak.requested > 4 << 20
    said = (tmp_path / "said").read_text().splitlines()
    assert said == ["__main__ ['0', '--more'] bf16", "launched"]


def test_what_it_ends_with_ends_the_launcher(launched, tmp_path):
    assert launched("--mixed_precision", "bf16", "tune.py", "7").ending.code == 7
    assert "launched" not in (tmp_path / "said").read_text()


def test_several_processes_are_launched_by_what_is_typed(launched):
    with pytest.raises(EstimateError, match=r"accelerate launch --num_processes 4 tune\.py 0"):
        launched("--multi_gpu", "--num_processes", "4", "tune.py", "0")
