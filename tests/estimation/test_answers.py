"""Plans are traced side by side; each once, in order, and what one thread meets others hear of."""

import functools
import os
import subprocess
import sys
import threading
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from memcalc.estimation.answers import Answers
from memcalc.estimation.engine import engine
from memcalc.estimation.question import look_up
from memcalc.estimation.replays import Replays, roomy_card
from memcalc.records.plan import Plan


@given(st.integers(0, 12), st.integers(1, 4))
def test_every_item_is_asked_about_once_and_answered_in_its_place(count, workers):
    asked = []

    def ask(item):
        asked.append(item)
        return -item

    found = Answers(workers=workers).map_parallel(ask, range(count))
    assert list(found) == [-item for item in range(count)]
    assert sorted(asked) == list(range(count))


def test_a_slow_answer_does_not_hold_up_the_others():
    others = threading.Barrier(2)
    seen = []

    def ask(item):
        if item == 0:
            others.wait(20)  # until the last of the others has been asked
        seen.append(item)
        if item == 7:
            others.wait(20)

    list(Answers(workers=2).map_parallel(ask, range(8)))
    assert seen == [1, 2, 3, 4, 5, 6, 7, 0]


def test_what_a_call_raises_is_raised_in_its_place_and_the_others_are_answered():
    def ask(item):
        if item == 1:
            raise RuntimeError("lost")
        return item

    found = Answers(workers=2).map_parallel(ask, range(3))
    assert next(found) == 0
    with pytest.raises(RuntimeError, match="lost"):
        next(found)


def test_no_more_runs_at_once_than_there_is_room_for(monkeypatch):
    running, most = [], []

    def run(plan, **_):
        running.append(plan)
        most.append(len(running))
        time.sleep(0.01)
        running.remove(plan)

    monkeypatch.setattr(engine, "predict", run)
    answers = Answers(workers=2)

    def several(batch):
        ask = functools.partial(answers.predict_lengths, lengths=(8,))
        return list(answers.map_parallel(ask, [Plan(model="a", batch=batch + n) for n in range(4)]))

    list(answers.map_parallel(several, [10, 20, 30]))
    assert max(most) == 2


def test_nothing_more_is_asked_when_nobody_listens_any_more():
    asked = []

    def ask(item):
        asked.append(item)
        time.sleep(0.01)

    found = Answers(workers=2).map_parallel(ask, range(100))
    next(found)
    found.close()
    time.sleep(0.05)
    assert len(asked) < 20


def test_a_run_under_other_settings_is_what_its_replay_under_them_says(traced):
    plan = replace(traced.prediction.plan, alloc_conf="roundup_power2_divisions:2")
    answers = Answers(use_cache=False)
    (found,) = answers.predict([plan])
    (replay,) = Replays(traced.trace, engine.player()).on([roomy_card(look_up(plan))])
    assert found.peak.allocated == replay.peaks.allocated
    assert found.peak.reserved == replay.peaks.reserved
    assert found.peak.allocated > traced.prediction.peak.allocated


def test_gpus_that_run_the_same_kernels_share_a_run_and_get_the_answers_of_their_own(traced):
    alike = [replace(traced.prediction.plan, gpu=gpu) for gpu in ("A100-40GB", "A100-80GB", "t4")]
    together = Answers(use_cache=False)
    found = list(together.predict(alike))
    assert together.runs == 2
    assert found == [Answers(use_cache=False).predict_one(plan) for plan in alike]


def test_each_result_comes_as_soon_as_it_is_known():
    waits, answers = threading.Event(), Answers(workers=2)
    late = answers.iterate_results([lambda: waits.wait(30) and "last", lambda: "first"])
    assert next(late) == "first"
    waits.set()
    assert next(late) == "last"


@pytest.fixture
def slow_engine(monkeypatch, traced):
    """Answers at once, but batches over 8 only once they may."""
    asked, may = [], threading.Event()

    def predict_together(plans, **_):
        asked.append(plans[0].batch)
        assert plans[0].batch <= 8 or may.wait(30)
        return [replace(traced.prediction, plan=plan) for plan in plans]

    monkeypatch.setattr(engine, "predict_together", predict_together)
    monkeypatch.setattr(engine, "trace", lambda plan, **_: traced)
    return asked, may


def test_a_plan_under_way_is_waited_for_alone_and_run_once(traced, slow_engine):
    asked, may = slow_engine
    plan = traced.prediction.plan
    quick, slow = (replace(plan, batch=size) for size in (6, 16))
    answers = Answers(use_cache=False, workers=3)
    answers.trace(plan, before=[slow, quick])
    found = answers.predict([quick, slow])
    assert next(found).plan == quick, "it does not wait for the slow one"
    may.set()
    assert next(found).plan == slow
    assert sorted(asked) == [6, 16]


def test_a_plan_whose_first_asker_left_is_run_for_the_next(traced, slow_engine):
    asked, may = slow_engine
    slow, later = (replace(traced.prediction.plan, batch=size) for size in (16, 6))
    answers = Answers(use_cache=False, workers=1)
    leaves = answers.predict([traced.prediction.plan, slow, later])
    next(leaves)
    while 16 not in asked:
        time.sleep(0.001)
    del leaves
    may.set()
    assert [one.plan for one in answers.predict([slow, later])] == [slow, later]
    assert asked == [4, 16, 6]


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
    os.environ["TMPDIR"] = os.getcwd()
    memcalc.estimate("distilbert-base-cased", use_cache=False, batch=9)
    assert len(parents() - warm) == 1, "other variables need another process"
    if os.fork() == 0:
        own = memcalc.estimate("distilbert-base-cased", use_cache=False, batch=9)
        os._exit(0 if own.peak == second.peak else 1)
    assert os.wait()[1] == 0
    print(*parents() - warm)
"""


@pytest.mark.nightly
def test_one_process_answers_all_questions_and_ends_with_who_asked(tmp_path):
    (tmp_path / "asks.py").write_text(PROGRAM)
    ran = subprocess.run(
        [sys.executable, "asks.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ran.returncode == 0, ran.stderr
    assert not psutil.pid_exists(int(ran.stdout))


WARMED = """
import sys
from memcalc.catalog.plan import make
from memcalc.estimation import child, engine
child.warm("gpt2", *engine._modules(make({"model": "gpt2", "loop": "trainer"})))
import torch
assert {"transformers.trainer", "peft", "bitsandbytes"} <= sys.modules.keys()
assert "torch._inductor.graph" not in sys.modules
assert not torch.cuda.is_initialized()
"""


@pytest.mark.nightly
def test_what_all_runs_of_the_trainer_import_is_imported_once_without_inductor_and_cuda():
    ran = subprocess.run([sys.executable, "-c", WARMED], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
