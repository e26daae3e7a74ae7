"""The table of GPUs: every entry is sane and is found however people write it."""

import pytest

from memcalc.catalog import gpus
from memcalc.errors import UsageError

GIB = 1 << 30
THREADS = {
    # Compute capability to threads per multiprocessor, CUDA programming guide, "Technical
    # Specifications per Compute Capability".
    (6, 0): 2048,
    (7, 0): 2048,
    (7, 5): 1024,
    (8, 0): 2048,
    (8, 6): 1536,
    (8, 7): 1536,
    (8, 9): 1536,
    (9, 0): 2048,
    (10, 0): 2048,
    (10, 3): 2048,
    (12, 0): 1536,
    (12, 1): 1536,
}


@pytest.mark.parametrize("gpu", gpus.table(), ids=lambda gpu: gpu.name)
def test_an_entry_is_possible(gpu):
    assert 4 * GIB < gpu.memory < 300 * GIB
    assert gpu.nvml_memory is None or gpu.memory <= gpu.nvml_memory
    assert gpu.threads_per_multiprocessor == THREADS[gpu.capability]
    assert 4 <= gpu.multiprocessors <= 192
    assert 50e9 < gpu.bandwidth < 10e12
    assert gpu.source


def test_the_table_is_wide():
    assert len(gpus.table()) >= 40


def test_no_two_gpus_share_a_name():
    names = [
        name
        for gpu in gpus.table()
        for name in {gpus._plain(name) for name in (gpu.name, *gpu.aliases)}
    ]
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("a100-80gb", "A100-80GB"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("h200", "H200"),
        ("NVIDIA RTX A6000", "RTX A6000"),
        ("NVIDIA B300 SXM6 AC", "B300"),
    ],
)
def test_a_gpu_answers_to_the_names_that_drivers_and_people_give_it(typed, found):
    assert gpus.find(typed).name == found


@pytest.mark.parametrize(("typed", "close"), [("H1000", "H100"), ("RTX 4091", "RTX 4090")])
def test_an_unknown_gpu_offers_close_names(typed, close):
    with pytest.raises(UsageError, match=close):
        gpus.find(typed)


def test_a_published_reading_is_kept_to_its_mebibyte():
    # deviceQuery on an A40: 47608692736 bytes.
    assert abs(gpus.find("A40").memory - 47_608_692_736) < 1 << 20
