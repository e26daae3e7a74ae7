"""Each size of a program is run once, by one thread at a time."""

import contextlib
import threading

import pytest
from memcalc.estimation.client import Judged
from msgspec.structs import replace

from memcalc.advice.fit.runs import Runs
from memcalc.catalog import gpus
from memcalc.catalog.plan import make
from memcalc.errors import EstimateError
from memcalc.estimation import pool
from memcalc.estimation.fits import device_of
from memcalc.records.levels import Levels
from memcalc.records.prediction import Fit, FitVerdict

PLAN = make({"model": "gpt2", "gpu": "t4", "batch": 1, "seq": 64})
DEVICE = device_of(gpus.find("t4"), plan=PLAN)
LIMIT = 1000
NONE = Levels(requested=0, allocated=0, active=0, reserved=0)


class Client(contextlib.nullcontext):
    """A client whose runs need as many bytes as they have tokens."""

    def __init__(self):
        super().__init__(self)
        self.asked = []
        self._busy = threading.Lock()

    def judged(self, plan, devices):
        assert self._busy.acquire(blocking=False), "two threads asked one client"
        self.asked.append((plan.batch, plan.seq))
        needed = plan.batch * plan.seq
        verdict = FitVerdict.FITS if needed <= LIMIT else FitVerdict.DOES_NOT_FIT
        fit = Fit(gpu="T4", capacity=LIMIT, needed=needed, metric="process_used", verdict=verdict)
        self._busy.release()
        return Judged(peaks=NONE, fits=(fit,) * len(devices), seq=plan.seq)


@pytest.fixture
def over(monkeypatch):
    """Runs over such clients."""

    def made(*clients):
        given = iter(clients)
        monkeypatch.setattr(pool, "Client", lambda *_: next(given))
        return Runs(stack.enter_context(pool.Pool(len(clients))), None)

    with contextlib.ExitStack() as stack:
        yield made


def test_a_question_is_asked_once_however_often_it_is_put(over):
    client = Client()
    runs = over(client)
    assert runs.probe(PLAN, DEVICE) == runs.probe(PLAN, DEVICE)
    assert client.asked == [(1, 64)]


def test_what_is_larger_than_one_that_does_not_fit_is_not_run(over):
    clients = [Client(), Client()]
    plans = [replace(PLAN, batch=b, seq=s) for s in (64, 128, 256) for b in (1, 4, 8, 16, 64)]
    found = over(*clients).table(plans, DEVICE)
    assert [probe.fit.fits for probe in found] == [p.batch * p.seq <= LIMIT for p in plans]
    assert (64, 256) not in {one for client in clients for one in client.asked}
    assert found[-1].fit.metric == "allocated"


def test_each_client_is_asked_by_one_thread_at_a_time(over):
    clients = [Client(), Client()]
    runs = over(*clients)
    plans = [replace(PLAN, batch=n) for n in range(1, 30)]
    found = runs.each([lambda plan=plan: runs.probe(plan, DEVICE) for plan in plans])
    assert [probe.batch for probe in found] == [plan.batch for plan in plans]
    assert sorted(one for client in clients for one in client.asked) == [
        (p.batch, 64) for p in plans
    ]


def test_a_run_that_fails_is_an_error(over):
    class Broken(Client):
        def judged(self, plan, devices):
            return EstimateError("it broke")

    with pytest.raises(EstimateError, match="it broke"):
        over(Broken()).probe(PLAN, DEVICE)
