"""The table of GPUs: every entry is sane and is found however people write it."""

import pytest

from memcalc.catalog import gpus
from memcalc.catalog.gpus import architectures
from memcalc.catalog.plan import describe_gpu_name, make
from memcalc.errors import UsageError

GIB = 1 << 30


def test_the_table_is_wide_and_each_entry_is_possible():
    assert len(gpus.table()) >= 130
    for gpu in gpus.table():
        assert 2 * GIB < gpu.memory < 300 * GIB
        assert gpu.nvml_memory is None or gpu.memory <= gpu.nvml_memory
        assert gpu.capability in architectures()
        assert gpu.memory <= gpu.sold_as * GIB
        assert 4 <= gpu.multiprocessors <= 192
        assert 50e9 < gpu.bandwidth < 10e12
        assert gpu.source


def test_a_gpu_whose_reading_is_missing_offers_what_its_model_offers_less_of_nvmls_total():
    like, derived = gpus.find("RTX 4080 SUPER"), gpus.find("RTX 4090 Laptop")
    assert derived.nvml_memory - derived.memory == like.nvml_memory - like.memory
    assert "RTX 4080 SUPER" in derived.source


def test_a_gpu_answers_to_its_own_names_in_every_spelling_and_to_its_drivers():
    for gpu in gpus.table():
        for name in (gpu.name, *gpu.aliases):
            for typed in (name, name.lower(), f"NVIDIA {name}", name.replace(" ", "-"),
                          name.replace(" ", "")):  # fmt: skip
                assert gpus.find(typed) is gpu
        assert gpus.find(gpu.driver_name, gpu.nvml_memory or gpu.memory) is gpu


SUFFIXES = ("Ti", "SUPER", "Ti SUPER", "D", "Laptop", "Mobile", "Max-Q", "Ada", "SFF Ada", "NVL",
            "PCIe", "SXM", "Blackwell", "G", "S", "X")  # fmt: skip


@pytest.mark.nightly
def test_no_suffix_leads_from_one_gpu_to_another():
    """A name and a suffix is another card of that very name, or none."""
    for gpu in gpus.table():
        for suffix in SUFFIXES:
            try:
                found = gpus.find(f"{gpu.name} {suffix}")
            except UsageError:
                continue
            names = [name.lower().replace(" ", "") for name in (found.name, *found.aliases)]
            assert any(
                suffix.replace("Mobile", "Laptop").lower().replace(" ", "") in n for n in names
            )


@pytest.mark.parametrize(
    ("typed", "choice"),
    [
        ("RTX 6000", ["Quadro RTX 6000", "RTX 6000 Ada", "RTX PRO 6000 Blackwell"]),
        ("RTX 4050", ["RTX 4050 Laptop"]),
    ],
)
def test_a_name_of_unlike_gpus_asks_which_with_the_names_to_type(typed, choice):
    with pytest.raises(UsageError, match=f"name one of {', '.join(choice)}\\.$"):
        gpus.find(typed)
    for name in choice:
        assert gpus.find(name).name == name


@pytest.mark.parametrize(
    ("typed", "count", "taken", "said"),
    [
        ("3080", 1, "RTX 3080 10GB", "the smallest of RTX 3080 10GB, RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 5060 Ti", 1, "RTX 5060 Ti 8GB", "the smallest of"),
        ("a100", 1, "A100-40GB", "the smallest of A100-40GB, A100-80GB"),
        ("V100", 1, "V100-16GB", "the smallest of"),
        ("H100", 1, "H100 SXM", "most clouds rent"),
        ("h100 80gb", 1, "H100 SXM", "most clouds rent"),
        ("8xa100", 8, "A100-40GB", "the smallest of"),
        ("colab", 1, "T4", "Google Colab's FAQ"),
        ("kaggle", 2, "T4", "GPU T4 x2"),
        ("g5.xlarge", 1, "A10G", "Amazon's list"),
        ("P4D.24xlarge", 8, "A100-40GB", "Amazon's list"),
        ("Standard_NC48ads_A100_v4", 2, "A100-80GB", "Azure's list"),
    ],
)
def test_a_name_that_several_gpus_or_a_rented_machine_bear_is_taken_and_said(
    typed, count, taken, said
):
    plan = make({"model": "gpt2", "gpu": typed})
    assert (plan.devices, plan.gpu) == (count, taken)
    assert said in describe_gpu_name({"gpu": typed})


def test_a_name_of_one_gpu_needs_no_word_and_fewer_gpus_of_a_machine_can_be_asked_for():
    assert describe_gpu_name({"gpu": "4090"}) == describe_gpu_name({"gpu": "no such card"}) == ""
    assert make({"model": "gpt2", "gpu": "p4d.24xlarge", "devices": 2}).devices == 2


def test_cards_that_clouds_rent_are_neither_laptops_nor_boards():
    names = [gpu.name for gpu in gpus.list_rental_gpus()]
    assert {"T4", "RTX 4090", "H100 SXM", "B200"} <= set(names)
    assert not any("Laptop" in name or "Jetson" in name for name in names)


@pytest.mark.parametrize(
    ("name", "total", "found"),
    [
        ("NVIDIA GeForce RTX 4060 Ti", 16380 << 20, "RTX 4060 Ti 16GB"),
        ("NVIDIA GeForce RTX 4060 Ti", 8188 << 20, "RTX 4060 Ti 8GB"),
        ("NVIDIA GeForce RTX 3080", 12_117 << 20, "RTX 3080 12GB"),
        ("NVIDIA GeForce RTX 4090", 24_217 << 20, "RTX 4090"),
    ],
)
def test_the_size_that_was_measured_decides_between_cards_of_one_name(name, total, found):
    assert gpus.find(name, total).name == found


def test_a_size_that_no_card_of_the_name_has_decides_nothing():
    with pytest.raises(UsageError, match="several GPUs"):
        gpus.find("RTX 4060 Ti", 24 << 30)


@pytest.mark.parametrize(
    "typed",
    ["MI300X", "AMD Instinct MI250", "Radeon RX 7900 XTX", "RX 7900 XTX", "Intel Arc A770",
     "Arc B580", "gaudi2", "Gaudi 3", "M3 Max", "Apple M2 Ultra", "m1", "TPU v5e", "mps",
     "Trainium", "Ascend 910B"],
)  # fmt: skip
def test_gpus_of_other_makers_are_told_apart_from_typing_errors(typed):
    with pytest.raises(UsageError, match="not supported: memcalc knows NVIDIA GPUs"):
        gpus.find(typed)


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("rtx4090", "RTX 4090"),
        ("4090", "RTX 4090"),
        ("4070 ti super", "RTX 4070 Ti SUPER"),
        ("RTX 4070", "RTX 4070"),
        ("RTX 2080", "RTX 2080"),
        ("1080ti", "GTX 1080 Ti"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "RTX 4090 Laptop"),
        ("RTX 4090 mobile", "RTX 4090 Laptop"),
        ("T4 16GB", "T4"),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
        ("NVIDIA H200 NVL", "H200 NVL"),
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


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ({"gpu": "8xh100"}, "H100 SXM"),
        ({"gpu": "NVIDIA H100", "devices": 4}, "H100 SXM"),
        ({"gpu": "8xh100-nvl"}, "H100 NVL"),
        ({"gpu": "4x4090"}, "RTX 4090"),
        ({"gpu": "RTX 4090 x 4"}, "RTX 4090"),
        ({"gpu": "a100-80gbx8"}, "A100-80GB"),
    ],
)
def test_several_in_a_box_are_those_that_are_sold_in_one(typed, meant):
    assert gpus.find(make({"model": "gpt2", **typed}).gpu).name == meant
