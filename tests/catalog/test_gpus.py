import pytest

from memcalc.catalog import gpus
from memcalc.errors import UsageError
from memcalc.units import GIB


def test_every_gpu_is_plausible():
    assert len(gpus.table()) >= 40
    for gpu in gpus.table():
        assert 4 * GIB < gpu.memory <= gpu.nvml_memory
        assert gpu.memory > 0.93 * gpu.nvml_memory
        assert (6, 0) <= gpu.capability <= (12, 1)
        assert gpu.threads_per_multiprocessor == threads(gpu.capability)
        assert gpu.source


def threads(capability):
    """CUDA C++ Programming Guide, technical specifications per compute capability."""
    if capability == (7, 5):
        return 1024
    return 1536 if capability in ((8, 6), (8, 9)) or capability[0] == 12 else 2048


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("t4", "T4"),
        ("NVIDIA H200", "H200"),
        ("a100", "A100-80GB"),
        ("A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
    ],
)
def test_a_gpu_answers_to_the_names_that_people_and_drivers_use(typed, found):
    assert gpus.find(typed).name == found


def test_no_name_is_taken_twice():
    names = [{gpus._plain(n) for n in (gpu.name, *gpu.aliases)} for gpu in gpus.table()]
    assert sum(map(len, names)) == len(set().union(*names))


def test_an_unknown_gpu_gets_close_names():
    with pytest.raises(UsageError, match="RTX 4090"):
        gpus.find("RTX 4091")
