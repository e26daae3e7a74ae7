"""Memory budgets of tests: ``@pytest.mark.memory_budget("2 GiB")`` and ``memory_estimate``.

With ``gpu="t4"`` the test's body runs on a simulated GPU, in a copy of the process, and computes
nothing. Without, the marked test is really run and really measured: on CUDA by PyTorch's caching
allocator, on the CPU by the events of PyTorch's CPU allocator; then what counts is the peak of the
test's own body above where it began, and what fixtures made before is not counted. A marker that
cannot be enforced is an error, never green, also where the test is expected to fail.
"""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import types
import unittest
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec
import pytest

from memcalc.errors import MemcalcError, UsageError
from memcalc.units import format_mib, parse_bytes

if TYPE_CHECKING:
    from memcalc.records.prediction import Prediction

MARKER = "memory_budget"
METRICS = ("allocated", "requested", "reserved")
_KEYWORDS = ("device", "metric", "gpu")


class TestBudget(msgspec.Struct, frozen=True, kw_only=True):
    """The budget that a marker asks for."""

    __test__ = False

    limit: int
    """Bytes."""
    text: str
    device: str
    """``cuda`` or ``cpu``."""
    metric: str
    gpu: str | None = None
    """Simulated; ``None``: the test runs where it is."""


_BUDGET = pytest.StashKey[TestBudget]()
_JUDGED = pytest.StashKey[bool]()
"""Whether a peak of the test was held against its limit."""


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    config.addinivalue_line(
        "markers",
        f'{MARKER}(limit, device=None, metric="allocated", gpu=None): fail where the test takes '
        'more memory than the limit, such as "2 GiB", above where it began; gpu="t4" simulates.',
    )


@pytest.fixture
def memory_estimate() -> Callable[..., Prediction]:
    """Return ``memcalc.estimate``, which predicts the memory of a training run without a GPU."""
    from memcalc.script.api import estimate

    return estimate


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Read a test's marker; fail before the test if it cannot be enforced."""
    marker = item.get_closest_marker(MARKER)
    if marker is None:
        return
    item.stash[_JUDGED] = False
    if sum(one.name == MARKER for one in item.own_markers) > 1:
        _fail_test(f"the test has several, and one is judged: leave one {MARKER}.")
    try:
        item.stash[_BUDGET] = read_budget(marker.args, marker.kwargs)
    except UsageError as error:
        _fail_test(str(error))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Measure the peak memory of a marked test and fail it if over its budget."""
    budget = item.stash.get(_BUDGET, None)
    if budget is not None and budget.gpu is not None:
        _prepare_simulation(item, budget)
        budget = None
    if budget is None:
        yield
        return
    from memcalc.measure.block_peak import BlockPeak

    watch = BlockPeak(budget.device, budget.metric)
    gc.collect()
    try:
        watch.begin()
    except (MemcalcError, RuntimeError) as error:
        _fail_test(f"{budget.device} cannot be watched: {error}")
    outcome: Any = yield
    failure = None
    try:
        peak = watch.end()
        failure = _judge_peak(item, budget, peak)
    except (MemcalcError, RuntimeError) as error:
        failure = f"the memory budget cannot be enforced: {budget.device} was not read: {error}"
    if failure is not None and outcome.excinfo is None:
        outcome.force_exception(pytest.fail.Exception(failure, pytrace=False))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test on the simulated GPU that its marker names."""
    budget = pyfuncitem.stash.get(_BUDGET, None)
    if budget is None or budget.gpu is None:
        return None
    given = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    _run_on_gpu(pyfuncitem, functools.partial(_run_body, pyfuncitem.obj, given), budget)
    return True


@pytest.hookimpl(hookwrapper=True, tryfirst=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Turn a report into a failure if its test's budget was not judged."""
    outcome: Any = yield
    report: pytest.TestReport = outcome.get_result()
    expected = hasattr(report, "wasxfail")
    unjudged = item.get_closest_marker(MARKER) is not None and not item.stash.get(_JUDGED, False)
    if not unjudged or not (expected or (report.passed and report.when == "call")):
        return
    report.outcome = "failed"
    report.longrepr = f"the memory budget was not judged: {_EXPECTED if expected else _NOT_RUN}"
    if expected:
        del report.wasxfail


_EXPECTED = "the test is expected to fail: remove xfail, or the marker."
_NOT_RUN = "nothing measured the test: does another plugin run it?"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many skipped tests have memory budgets."""
    skipped = terminalreporter.stats.get("skipped", ())
    count = sum(MARKER in getattr(report, "keywords", ()) for report in skipped)
    if count:
        terminalreporter.write_line(f"memcalc: {count} skipped tests have memory budgets")


def _judge_peak(item: pytest.Item, budget: TestBudget, peak: int) -> str | None:
    """Record a test's peak in bytes; return the failure message, or None within budget."""
    item.user_properties.append(("memcalc_peak_bytes", peak))
    item.stash[_JUDGED] = peak > 0
    return verdict(budget, peak)


def _run_on_gpu(item: pytest.Item, body: Callable[[], Any], budget: TestBudget) -> None:
    """Run a test's body on its marker's simulated GPU; fail the test if over budget."""
    failure = _judge_peak(item, budget, _measure_simulated(body, budget))
    if failure is not None:
        pytest.fail(failure, pytrace=False)


def _prepare_simulation(item: pytest.Item, budget: TestBudget) -> None:
    """Replace the method of a ``unittest.TestCase``, which pytest does not call, by its simulation.

    ``pytest_pyfunc_call`` runs other tests.
    """
    if not isinstance(item, pytest.Function):
        _fail_test(f"a {type(item).__name__} cannot be simulated: leave gpu out.")
    if item.cls is not None and issubclass(item.cls, unittest.TestCase):
        method = item.obj

        @functools.wraps(method)
        def simulate() -> None:
            _run_on_gpu(item, _detach_method(method, item.name), budget)

        item.obj = simulate


def _detach_method(method: types.MethodType, name: str) -> Callable[[], None]:
    """Return a TestCase's method on a copy of the case that can be pickled."""
    case = copy.copy(method.__self__)
    # The run of this process: its result, its loop, and the function that stands for the method.
    for own in ("_outcome", "_asyncioRunner", "_asyncioTestContext"):
        vars(case)[own] = None
    vars(case).pop(name, None)
    return functools.partial(_run_body, types.MethodType(method.__func__, case), {})


class _SkippedThereError(Exception):
    """A test skipped itself: pytest's own exception of that cannot be pickled."""


def _run_body(test: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Run a test's body in the simulated process; a skip becomes an error to pickle."""
    try:
        result = test(**given)
        if inspect.iscoroutine(result):
            asyncio.run(result)
    except (pytest.skip.Exception, unittest.SkipTest) as error:
        raise _SkippedThereError(str(error)) from None


def _measure_simulated(body: Callable[[], Any], budget: TestBudget) -> int:
    """Return the peak, in bytes, of a test's body on a simulated GPU."""
    from memcalc.script.live import run_in_child

    try:
        found = run_in_child(body, {"gpu": budget.gpu, "steps": 0}, "test")
    except _SkippedThereError as error:
        pytest.skip(str(error))
    except MemcalcError as error:
        _fail_test(str(error))
    except Exception as error:
        pytest.fail("\n".join(getattr(error, "__notes__", [str(error)])), pytrace=False)
    peak = found.prediction.peak if found is not None else None
    return getattr(peak, budget.metric) or 0 if peak is not None else 0


def read_budget(arguments: tuple[Any, ...], keywords: Mapping[str, Any]) -> TestBudget:
    """Parse a marker's arguments as a budget.

    Raises:
        UsageError: it is not understood, or nothing here can measure what it asks for.
    """
    if len(arguments) != 1 or not isinstance(arguments[0], str):
        raise UsageError(f'write one limit with its unit, as {MARKER}("2 GiB").')
    strange = sorted(keywords.keys() - set(_KEYWORDS))
    if strange:
        raise UsageError(f"{', '.join(strange)} is not known: there are {', '.join(_KEYWORDS)}.")
    metric = keywords.get("metric", "allocated")
    if metric not in METRICS:
        raise UsageError(f"metric = {metric!r}: choose {', '.join(METRICS)}.")
    gpu = _find_gpu(keywords)
    device = "cuda" if gpu is not None else _choose_device(keywords.get("device"))
    if device == "cpu" and metric == "reserved":
        raise UsageError("PyTorch's CPU allocator reserves nothing: choose allocated.")
    limit = parse_bytes(arguments[0])
    return TestBudget(limit=limit, text=arguments[0], device=device, metric=metric, gpu=gpu)


def verdict(budget: TestBudget, peak: int) -> str | None:
    """Return the failure message for a peak in bytes, or None if the budget holds."""
    where = f"on {budget.device if budget.gpu is None else budget.gpu}"
    if peak <= 0 and budget.gpu is not None:
        return "the memory budget cannot be enforced: the test put nothing on the GPU."
    if peak <= 0:
        other = "cpu" if budget.device == "cuda" else "cuda"
        return (
            f"the memory budget cannot be enforced: memory never rose above the start {where}; "
            f'does it run elsewhere? Then name it: {MARKER}("{budget.text}", device="{other}").'
        )
    if peak <= budget.limit:
        return None
    return (
        f"memory budget exceeded: {budget.metric} {format_mib(peak)} {where} above the start > "
        f"{format_mib(budget.limit)} (+{peak - budget.limit:,} bytes)"
    )


def _fail_test(reason: str) -> NoReturn:
    failure = f"the memory budget cannot be enforced: {reason}"
    raise pytest.fail.Exception(failure, pytrace=False) from None


def _choose_device(asked: Any) -> str:
    if asked not in (None, "cuda", "cpu"):
        raise UsageError(f"device = {asked!r}: choose cuda or cpu.")
    from memcalc.measure.block_peak import has_cuda

    if asked == "cuda" and not has_cuda():
        raise UsageError("PyTorch sees no CUDA GPU here.")
    return asked or ("cuda" if has_cuda() else "cpu")


def _find_gpu(keywords: Mapping[str, Any]) -> str | None:
    wanted = keywords.get("gpu")
    if wanted is None:
        return None
    if not isinstance(wanted, str):
        raise UsageError(f'gpu = {wanted!r}: write its name, as gpu="t4".')
    if keywords.get("device") not in (None, "cuda"):
        raise UsageError("A simulated GPU is no CPU: leave device out, or gpu.")
    from memcalc.catalog import gpus

    return gpus.find(wanted).name
