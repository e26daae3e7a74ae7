"""PyTorch's own words when memory runs out, of several releases: what they say, and why it was."""

import pytest

from memcalc.errors import UsageError
from memcalc.files.oom_text import is_oom_text, read
from memcalc.units import GIB, MIB

TRACEBACK = """Epoch 1: loss 2.31
Traceback (most recent call last):
  File "/home/me/train.py", line 42, in <module>
    loss.backward()
  File "/usr/lib/python3.11/site-packages/torch/_tensor.py", line 581, in backward
    torch.autograd.backward(
torch.OutOfMemoryError: """
OLD = (
    "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 1; 15.78 GiB total capacity; 13.00 GiB "
    "already allocated; 1.20 GiB free; 13.60 GiB reserved in total by PyTorch) If reserved memory "
    "is >> allocated memory try setting max_split_size_mb to avoid fragmentation.\n"
)


def new(asked, free, process, allocated, cached, allowed="", other=""):
    return (
        f"CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of 14.56 GiB "
        f"of which {free} is free. {other}Including non-PyTorch memory, this process has {process} "
        f"memory in use. {allowed}Of the allocated memory {allocated} is allocated by PyTorch, and "
        f"{cached} is reserved by PyTorch but unallocated. If reserved but unallocated memory is "
        "large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True.\nmore output\n"
    )


TOO_LARGE = new("1.12 GiB", "900.00 MiB", "13.56 GiB", "13.41 GiB", "19.09 MiB")
FRAGMENTS = new("512.00 MiB", "300.00 MiB", "14.20 GiB", "11.00 GiB", "3.05 GiB")
CROWDED = new(
    "2.00 GiB", "200.00 MiB", "8.00 GiB", "7.80 GiB", "50.00 MiB",
    other="Process 77 has 6.36 GiB memory in use. ",
)  # fmt: skip
LIMITED = new("2.00 GiB", "9.00 GiB", "5.50 GiB", "5.30 GiB", "80.00 MiB", "7.28 GiB allowed; ")


@pytest.mark.parametrize(
    ("text", "gap"),
    [
        (TOO_LARGE, "too large"),
        (FRAGMENTS, "fragmentation"),
        (CROWDED, "other processes"),
        (LIMITED, "limit"),
        (OLD, "too large"),
        (OLD.replace("Tried to allocate 2.00 GiB", "Tried to allocate 1.00 GiB"), "fragmentation"),
    ],
)
def test_why_a_request_failed_is_told(tmp_path, text, gap):
    file = tmp_path / "oom.txt"
    file.write_text(TRACEBACK + text)
    assert is_oom_text(file)
    found = read(file)
    assert found.gap == gap
    assert (found.line, found.script) == ("train.py:42", "/home/me/train.py")


def test_every_size_is_taken_over(tmp_path):
    file = tmp_path / "log"
    file.write_text(FRAGMENTS * 2)
    found = read(file)
    assert (found.asked, found.free) == (512 * MIB, 300 * MIB)
    assert (found.allocated, found.process) == (11 * GIB, int(14.2 * GIB))
    assert found.times == 2
    assert found.line is None
    file.write_text(OLD)
    old = read(file)
    assert (old.gpu, old.asked, old.process) == (1, 2 * GIB, None)
    assert old.cached == int(13.6 * GIB) - 13 * GIB


def test_a_message_that_is_cut_off_says_what_to_keep(tmp_path):
    file = tmp_path / "oom.txt"
    file.write_text("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB")
    with pytest.raises(UsageError, match="to its end"):
        read(file)


def test_what_is_no_log_is_none(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing of the kind")
    (tmp_path / "config.json").write_text('{"words": "Tried to allocate"}')
    assert not is_oom_text(tmp_path / "notes.txt")
    assert not is_oom_text(tmp_path / "config.json")
    assert not is_oom_text(tmp_path / "absent.txt")


def test_explain_takes_a_log(memcalc, tmp_path):
    (tmp_path / "oom.txt").write_text(TRACEBACK + FRAGMENTS)
    done = memcalc("explain", "oom.txt")
    assert done.returncode == 0
    assert "asked for 512.0 MiB, 300.0 MiB free of 14.6 GiB" in done.stdout
    assert "at train.py:42" in done.stdout
    assert "expandable_segments:True" in done.stdout
    assert "memcalc simulate --gpu NAME -o run.json -- python /home/me/train.py" in done.stdout
    assert '"gap": "fragmentation"' in memcalc("explain", "oom.txt", "--json").stdout


def test_a_plan_beside_a_log_is_refused(memcalc, tmp_path):
    (tmp_path / "oom.txt").write_text(FRAGMENTS)
    done = memcalc("explain", "oom.txt", "--batch", "4")
    assert done.returncode == 2
