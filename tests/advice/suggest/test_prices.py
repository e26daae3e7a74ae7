"""What a plan costs: all its GPUs, by a price or a file of prices."""

import pytest

from memcalc.advice.suggest import speed_and_price
from memcalc.advice.suggest.records import Speed
from memcalc.errors import UsageError
from memcalc.report.suggested import Work

FAST = Speed(low=1000, high=2000, tokens=1)


def cells(work, devices):
    return list(work.cells(FAST, "T4", devices))


def test_the_cost_is_that_of_all_gpus_for_the_hours():
    work = Work(tokens=3.6e6, prices=speed_and_price.read("2"))
    assert work.head([FAST]) == ("hours", "cost")
    assert cells(work, 1) == ["0.5 to 1", "1 to 2"]
    assert cells(work, 2) == ["0.5 to 1", "2 to 4"]
    assert "your currency" in next(work.note()).text


def test_a_file_gives_each_gpu_its_price_and_a_machine_that_of_each_of_its_gpus(tmp_path):
    path = tmp_path / "prices.toml"
    path.write_text('T4 = 0.5\n"p5.48xlarge" = 80\n')
    known = speed_and_price.read(str(path))
    assert known.of("T4") == 0.5
    assert known.of("H100 SXM") == 10
    with pytest.raises(UsageError, match="no price for L4, only for T4, H100 SXM"):
        known.of("L4")


@pytest.mark.parametrize("text", ["-1", "nan", "no/such/file"])
def test_what_is_no_price_is_refused_in_a_sentence(text):
    with pytest.raises(UsageError, match=r"no price|no such file"):
        speed_and_price.read(text)


@pytest.mark.parametrize("body", ["", "T4 = true", "T4 = -2", "'no card' = 1"])
def test_a_file_of_no_prices_is_refused_in_a_sentence(tmp_path, body):
    path = tmp_path / "prices.toml"
    path.write_text(body)
    with pytest.raises(UsageError, match=r"price|Unknown GPU"):
        speed_and_price.read(str(path))
