"""Plans are traced side by side; each once, in order, and what one thread meets others hear of."""

import os
import subprocess
import sys
import threading
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memcalc.errors import EstimateError
from memcalc.estimation.estimate import Tracer
from memcalc.estimation.pool import Pool
from memcalc.records.plan import Plan

pytestmark = pytest.mark.usefixtures("same_children")


def plans(count):
    return [Plan(model="ab"[n % 2], batch=n + 1) for n in range(count)]


@given(st.integers(0, 12), st.integers(1, 4))
def test_every_plan_is_asked_once_and_answered_in_its_place(count, workers):
    asked = []

    def ask(client, plan):
        asked.append(plan.batch)
        return plan.batch

    with Pool(workers) as pool:
        assert list(pool.each(plans(count), ask)) == list(range(1, count + 1))
    assert sorted(asked) == list(range(1, count + 1))


def test_who_has_done_its_share_helps_the_others():
    seen = {}
    slow = threading.Event()

    def ask(client, plan):
        seen.setdefault(client, []).append(plan.batch)
        if plan.batch == 1:
            slow.wait(20)
        elif plan.batch == 8:
            time.sleep(0.05)
        if sum(map(len, seen.values())) == 8:
            slow.set()
        return plan.batch

    with Pool(2) as pool:
        assert list(pool.each(plans(8), ask)) == list(range(1, 9))
    assert sorted(map(len, seen.values())) == [1, 7]


def test_a_failure_of_one_ask_is_the_answer_to_it_alone():
    def ask(client, plan):
        if plan.batch == 2:
            raise RuntimeError("lost")
        return plan.batch

    with Pool(2) as pool:
        first, second, third = pool.each(plans(3), ask)
    assert (first, third) == (1, 3)
    assert isinstance(second, EstimateError)
    assert "lost" in str(second)


def test_nothing_more_is_asked_when_nobody_listens_any_more():
    asked = []

    def ask(client, plan):
        asked.append(plan)
        time.sleep(0.01)

    with Pool(2) as pool:
        answers = pool.each(plans(100), ask)
        next(answers)
        answers.close()
    time.sleep(0.05)
    assert len(asked) < 20


def test_a_run_under_other_settings_is_what_its_replay_under_them_says(traced):
    from msgspec.structs import replace

    from memcalc.estimation.client import player
    from memcalc.estimation.question import asked
    from memcalc.estimation.replays import Replays, roomy_card

    plan = replace(traced.prediction.plan, alloc_conf="roundup_power2_divisions:2")
    with Tracer(use_cache=False) as tracer:
        (found,) = tracer.answers([plan])
    (replay,) = Replays(traced.trace, player()).on([roomy_card(asked(plan))])
    assert found.peak.allocated == replay.peaks.allocated
    assert found.peak.reserved == replay.peaks.reserved
    assert found.peak.allocated > traced.prediction.peak.allocated


PROGRAM = """
import memcalc, os, psutil
def parents():
    return {one.pid for one in psutil.Process().children()}
if __name__ == "__main__":
    first = memcalc.estimate("distilbert-base-cased", use_cache=False)
    warm = parents()
    second = memcalc.estimate("distilbert-base-cased", use_cache=False, batch=9)
    assert parents() == warm and len(warm) == 1
    assert second.peak.allocated > first.peak.allocated
    os.environ["SOMETHING_ELSE"] = "1"
    memcalc.estimate("distilbert-base-cased", use_cache=False, batch=9)
    assert len(parents()) == 1 and parents() != warm, "other variables need another process"
    if os.fork() == 0:
        own = memcalc.estimate("distilbert-base-cased", use_cache=False, batch=9)
        os._exit(0 if own.peak == second.peak else 1)
    assert os.wait()[1] == 0
    print(*parents())
"""


@pytest.mark.nightly
def test_one_process_answers_all_questions_and_ends_with_who_asked(tmp_path):
    (tmp_path / "asks.py").write_text(PROGRAM)
    environment = {name: value for name, value in os.environ.items() if name != "MEMCALC_WARM"}
    ran = subprocess.run(
        [sys.executable, "asks.py"],
        cwd=tmp_path,
        env={**environment, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert not psutil.pid_exists(int(ran.stdout))
