"""The pytest plugin, in runs of pytest of their own."""

import contextlib
import io
import xml.etree.ElementTree as ET

import pytest

TESTS = """
import unittest
import pytest, torch

MIB = 1 << 20

def take(mib):
    '''Two tensors of which the first dies before the second is made.'''
    first = torch.empty(mib * MIB, dtype=torch.uint8)
    del first
    return torch.empty(mib * MIB, dtype=torch.uint8)

@pytest.fixture
def before():
    return [torch.empty(64 * MIB, dtype=torch.uint8)]

@pytest.mark.memory_budget("8 MiB")
def test_exact(): take(8)

@pytest.mark.memory_budget("8388607 B")
def test_one_byte_over(): take(8)

@pytest.mark.memory_budget("9 MB")
def test_fixture_is_not_counted(before): take(8)

@pytest.mark.memory_budget("7 MiB")
def test_freeing_makes_no_room_on_the_cpu(before):
    before.clear()
    take(8)

@pytest.mark.memory_budget("1 GiB")
def test_takes_nothing(): pass

@pytest.mark.memory_budget("1 GiB", device="cuda")
def test_no_gpu(): take(1)

@pytest.mark.memory_budget("much")
def test_bad_limit(): take(1)

@pytest.mark.memory_budget(12)
def test_bare_number(): take(1)

@pytest.mark.memory_budget("1 GiB", divice="cpu")
def test_bad_keyword(): take(1)

@pytest.mark.memory_budget("1 GiB", metric="reserved")
def test_no_such_metric_on_cpu(): take(1)

@pytest.mark.memory_budget("1 B")
def test_own_failure_is_told():
    take(1)
    raise AssertionError("of its own")

@pytest.mark.memory_budget("1 B")
@pytest.mark.skip
def test_skipped(): take(1)

@pytest.mark.memory_budget("100 MiB")
class TestTraining:
    def test_a_step_is_measured(self):
        model = torch.nn.Linear(1024, 1024, bias=False)
        optimizer = torch.optim.AdamW(model.parameters())
        model(torch.ones(1, 1024)).sum().backward()
        optimizer.step()

    @pytest.mark.memory_budget("15 MiB")
    def test_the_closest_marker_counts(self):
        self.test_a_step_is_measured()

def step_on_the_gpu():
    model = torch.nn.Linear(1024, 1024, bias=False).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 1024, device="cuda")).sum().backward()
    optimizer.step()

@pytest.mark.memory_budget("100 MiB", gpu="t4")
def test_a_step_on_a_gpu_that_is_not_there(): step_on_the_gpu()

@pytest.mark.memory_budget("15 MiB", gpu="t4")
def test_a_step_that_takes_too_much_of_it(): step_on_the_gpu()

@pytest.mark.memory_budget("100 MiB", gpu="t4")
def test_nothing_on_the_gpu(): take(1)

@pytest.mark.memory_budget("100 MiB", gpu="t4")
def test_own_failure_on_the_gpu(): assert torch.zeros(3, device="cuda").shape == (4,)

@pytest.mark.memory_budget("1 TiB", gpu="t4")
def test_out_of_memory(): torch.empty(1 << 40, device="cuda")

@pytest.mark.memory_budget("100 MiB", gpu="t4")
def test_skips_itself(): pytest.skip("no data")

@pytest.mark.memory_budget("1 GiB", gpu="nothing-like-it")
def test_unknown_gpu(): pass

@pytest.mark.memory_budget("15 MiB", gpu="t4")
class TestCases(unittest.TestCase):
    def setUp(self):
        self.step = step_on_the_gpu

    def test_a_method_of_unittest_takes_too_much(self): self.step()

    @pytest.mark.memory_budget("100 MiB", gpu="t4")
    def test_a_method_of_unittest_holds(self): self.step()

    def test_a_method_of_unittest_skips_itself(self): self.skipTest("no data")

    @unittest.expectedFailure
    def test_a_method_of_unittest_that_shall_fail(self): raise ValueError

@pytest.mark.memory_budget("100 MiB", gpu="t4")
async def test_a_coroutine(): step_on_the_gpu()

@pytest.mark.xfail
@pytest.mark.memory_budget("1 GiB", gpu="nothing-like-it")
def test_expected_to_fail_and_unknown_gpu(): pass

@pytest.mark.xfail
@pytest.mark.memory_budget("1 GiB")
def test_expected_to_fail_of_its_own(): raise ValueError

@pytest.mark.xfail(run=False)
@pytest.mark.memory_budget("1 GiB")
def test_expected_to_fail_and_not_run(): pass

@pytest.mark.xfail
@pytest.mark.memory_budget("1 MiB")
def test_expected_to_exceed(): take(8)

@pytest.mark.memory_budget("1 GiB")
@pytest.mark.parametrize("mib", [pytest.param(8, marks=pytest.mark.memory_budget("1 MiB"))])
def test_two_budgets(mib): take(mib)

@pytest.mark.parametrize("mib", [pytest.param(8, marks=pytest.mark.memory_budget("1 MiB"))])
def test_of_a_parameter(mib): take(mib)

@pytest.fixture
def broken(): raise ValueError("no fixture")

@pytest.mark.memory_budget("1 GiB")
def test_without_its_fixture(broken): pass

@pytest.mark.memory_budget("1 MiB", gpu="t4")
def test_that_another_plugin_runs(): step_on_the_gpu()

def test_estimate(memory_estimate):
    found = memory_estimate("distilbert-base-cased", method="analytic", optim="adam8bit")
    assert found.components["optimizer_state"] == 134_004_336
"""
OTHER_PLUGIN = """
import pytest
from tests.conftest import _same_variables

@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    return True if pyfuncitem.name == "test_that_another_plugin_runs" else None
"""
EXPECTED = {
    "test_exact": "passed",
    "test_one_byte_over": "memory budget exceeded: allocated 8.0 MiB on cpu above the start",
    "test_fixture_is_not_counted": "passed",
    "test_takes_nothing": "memory never rose above the start on cpu",
    "test_freeing_makes_no_room_on_the_cpu": "memory budget exceeded: allocated 8.0 MiB",
    "test_no_gpu": "no CUDA GPU",
    "test_bad_limit": "not a size",
    "test_bare_number": "limit with its unit",
    "test_bad_keyword": "divice is not known",
    "test_no_such_metric_on_cpu": "reserves nothing",
    "test_own_failure_is_told": "of its own",
    "test_skipped": "skipped",
    "test_a_step_is_measured": "passed",
    "test_the_closest_marker_counts": "memory budget exceeded",
    "test_a_step_on_a_gpu_that_is_not_there": "passed",
    "test_a_step_that_takes_too_much_of_it": "on T4 above the start > 15.0 MiB",
    "test_nothing_on_the_gpu": "put nothing on the GPU",
    "test_own_failure_on_the_gpu": "assert torch.zeros",
    "test_out_of_memory": "CUDA out of memory. Tried to allocate",
    "test_skips_itself": "skipped",
    "test_unknown_gpu": "nothing-like-it",
    "test_a_method_of_unittest_takes_too_much": "on T4 above the start > 15.0 MiB",
    "test_a_method_of_unittest_holds": "passed",
    "test_a_method_of_unittest_skips_itself": "skipped",
    "test_a_method_of_unittest_that_shall_fail": "not judged: the test is expected to fail",
    "test_a_coroutine": "passed",
    "test_expected_to_fail_and_unknown_gpu": "nothing-like-it",
    "test_expected_to_fail_of_its_own": "not judged: the test is expected to fail",
    "test_expected_to_fail_and_not_run": "not judged: the test is expected to fail",
    "test_expected_to_exceed": "skipped",
    "test_that_another_plugin_runs": "nothing measured the test",
    "test_two_budgets[8]": "one is judged: leave one memory_budget",
    "test_of_a_parameter[8]": "memory budget exceeded",
    "test_without_its_fixture": "no fixture",
    "test_estimate": "passed",
}
ERRORS = {
    "test_no_gpu", "test_bad_limit", "test_bare_number", "test_bad_keyword",
    "test_no_such_metric_on_cpu", "test_unknown_gpu", "test_without_its_fixture",
    "test_expected_to_fail_and_unknown_gpu", "test_expected_to_fail_and_not_run",
    "test_two_budgets[8]",
}  # fmt: skip


def run_pytest(folder, *options):
    """Run pytest in this process, so that what runs on a simulated GPU is forked as by day."""
    said = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(said):
        without = ("-p", "no:memcalc", "-p", "no:xdist", "-p", "no:cacheprovider")
        code = pytest.main([*options, *without, "--strict-markers"])
    return code, said.getvalue()


@pytest.fixture
def run(shared, once, forked_scripts):
    """Result, text and properties of every test above, of a pytest of their own."""
    folder = shared / "plugin"
    with once("plugin"):
        if not folder.exists():
            folder.mkdir()
            (folder / "test_it.py").write_text(TESTS)
            (folder / "conftest.py").write_text(OTHER_PLUGIN)
            options = ("-p", "memcalc.pytest_plugin", "--junit-xml=out.xml")
            code, said = run_pytest(folder, "test_it.py", *options)
            assert code == 1, said
            assert "skipped tests have memory budgets" in said
    return {case.get("name"): case for case in ET.parse(folder / "out.xml").iter("testcase")}


def told(case):
    inside = [child for child in case if child.tag in ("failure", "error", "skipped")]
    if not inside:
        return "passed", ""
    return inside[0].tag, f"{inside[0].get('message')} {inside[0].text}"


@pytest.mark.parametrize("name", EXPECTED)
def test_a_marked_test_is_told_what_it_cost(run, name):
    tag, text = told(run[name])
    wanted = EXPECTED[name]
    if wanted in ("passed", "skipped"):
        assert tag == wanted, text
    else:
        assert tag == ("error" if name in ERRORS else "failure")
        assert wanted in text


def test_the_peak_is_the_bytes_that_were_taken(run):
    assert [p.get("value") for p in run["test_exact"].find("properties")] == [str(8 << 20)]


def test_without_the_plugin_a_strict_pytest_refuses_the_marker(tmp_path, monkeypatch):
    monkeypatch.setattr(pytest.mark, "_markers", set())  # those that other runs have registered
    (tmp_path / "test_strict.py").write_text(TESTS.replace("import pytest, torch", "import pytest"))
    code, said = run_pytest(tmp_path, "test_strict.py")
    assert code == 2
    assert "memory_budget" in said
