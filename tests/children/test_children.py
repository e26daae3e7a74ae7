"""Whatever a child does, it costs one job, and is said in one sentence."""

import base64
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import pytest

from memcalc.children.client import Parent
from memcalc.children.fork import forked
from memcalc.errors import EstimateError, UsageError

JOB = "tests.children.job"


@pytest.fixture(scope="module")
def parent():
    with Parent(EstimateError, {**os.environ, "MINE": "yes", "MEMCALC_WARM": ""}) as parent:
        yield parent


@pytest.fixture
def child(parent):
    child = parent.child(JOB, "simulated run", hint="a model")
    yield child
    child.end()


def living(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def gone(*pids, within=5.0):
    deadline = time.monotonic() + within
    while any(map(living, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(living, pids))


def test_a_child_answers_one_job_after_the_other_and_keeps_what_it_knows(child):
    assert child.ask({"do": "echo", "text": "ä"}) == {"kept": ["echo"], "said": "ä"}
    assert child.ask({"do": "facts"})["kept"] == ["echo", "facts"]


def test_it_works_where_the_asker_is_and_what_is_heavy_is_imported_in_its_parent(child):
    facts = child.ask({"do": "facts"})
    assert facts["folder"] == os.getcwd()
    assert facts["mine"] == "yes"
    assert facts["warmed"][-1] == ["a model", facts["parent"]]


def test_messages_of_any_size_arrive_whole(child):
    text = os.urandom(3 << 20)
    assert base64.b64decode(child.ask({"do": "echo", "text": text})["said"]) == text


def test_events_come_in_order_and_a_job_that_waits_goes_on_when_it_was_heard(child):
    heard = []
    answer = child.ask({"do": "counts"}, heard=heard.append)
    assert [event["number"] for event in heard] == [0, 1, 2, "last"]
    assert answer["gone on"] is True


def test_children_of_one_parent_do_not_hear_each_other(parent):
    children = [parent.child(JOB, "run") for _ in range(3)]
    first = [child.ask({"do": "facts"}) for child in children]
    assert len({facts["pid"] for facts in first}) == 3
    assert len({facts["parent"] for facts in first}) == 1
    # The third has no more descriptors than the first: those of its siblings are closed.
    assert len(first[0]["open"]) == len(first[2]["open"])
    with pytest.raises(EstimateError):
        children[0].ask({"do": "babbles", "and leaves": True})
    assert children[1].ask({"do": "echo", "text": "1"})["said"] == "1"
    for child in children:
        child.end()
    assert gone(*(facts["pid"] for facts in first))


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"do": "fails"}, "The simulated run stopped in layer.3: ValueError: of its own"),
        ({"do": "recurses"}, "its code recursed too deeply"),
        ({"do": "exits"}, r"its code called sys.exit\(0\)"),
        ({"do": "interrupts"}, "KeyboardInterrupt: no reason given"),
    ],
)
def test_a_job_that_raises_is_one_sentence_and_the_child_lives_on(child, request_, words):
    with pytest.raises(EstimateError, match=words):
        child.ask(request_)
    assert child.ask({"do": "echo", "text": "on"})["said"] == "on"


def test_a_question_that_is_wrong_is_told_as_such(child):
    with pytest.raises(UsageError, match=r"^Ask otherwise\.$"):
        child.ask({"do": "refuses"})


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"do": "leaves"}, r"\(exit code 0\) in layer.3: last words\.$"),
        ({"do": "leaves", "code": 7}, r"ended without an answer \(exit code 7\)"),
        ({"do": "dies", "signal": "SIGSEGV"}, "was ended by SIGSEGV in layer.3"),
        ({"do": "dies", "signal": "SIGABRT"}, "SIGABRT"),
        ({"do": "dies", "signal": "SIGTERM"}, "SIGTERM"),
        ({"do": "dies", "signal": "SIGKILL"}, "killed"),
        ({"do": "babbles", "and leaves": True}, "sent an unreadable message"),
    ],
)
def test_a_child_that_dies_is_one_sentence_with_its_last_place(child, request_, words):
    with pytest.raises(EstimateError, match=words):
        child.ask(request_)
    assert not child.alive


def test_a_child_that_prints_rubbish_into_its_answers_is_understood_if_it_goes_on(child):
    assert child.ask({"do": "babbles"})["kept"] == ["babbles"]


def test_a_child_that_prints_a_lot_is_not_held_up(child):
    assert child.ask({"do": "floods"}, timeout=20)["kept"] == ["floods"]


def test_a_child_that_takes_too_long_is_ended_with_all_it_started(child):
    made = []
    with pytest.raises(TimeoutError):
        child.ask({"do": "spawns"}, heard=made.append, timeout=1)
    assert gone(made[0]["pid"], made[0]["own"], within=1)


def test_time_is_told_while_a_job_is_silent(child):
    ticks = []
    with pytest.raises(TimeoutError):
        child.ask({"do": "hangs"}, tick=lambda: ticks.append(1), interval=0.05, timeout=0.5)
    assert 5 <= len(ticks) <= 12


def test_an_asker_that_is_interrupted_leaves_no_job_behind(child):
    def interrupted(event):
        raise KeyboardInterrupt

    pid = child.ask({"do": "facts"})["pid"]
    with pytest.raises(KeyboardInterrupt):
        child.ask({"do": "counts"}, heard=interrupted)
    assert gone(pid, within=1)
    assert not child.alive


def test_who_ends_a_child_that_another_thread_asks_leaves_its_last_word_to_that_thread(child):
    began, heard = threading.Event(), []

    def ask():
        try:
            child.ask({"do": "spawns"}, heard=lambda event: began.set())
        except EstimateError as error:
            heard.append(str(error))

    asker = threading.Thread(target=ask)
    asker.start()
    assert began.wait(10)
    child.end()
    asker.join(2)
    assert heard
    assert not child.alive


def test_a_child_that_another_thread_closes_meanwhile_is_gone(parent, monkeypatch):
    child = parent.child(JOB, "simulated run")
    kill = parent.end

    def heard_by_another_thread(number):
        kill(number)
        child._close()

    monkeypatch.setattr(parent, "end", heard_by_another_thread)
    child.end()
    assert not child.alive


def test_a_parent_that_dies_takes_its_children_and_is_replaced():
    with Parent(EstimateError, {**os.environ, "MEMCALC_WARM": ""}) as parent:
        child = parent.child(JOB, "run")
        facts = child.ask({"do": "facts"})
        heard = []

        def kill(event):
            heard.append(event)
            os.kill(facts["parent"], signal.SIGKILL)

        with pytest.raises(EstimateError, match="process that starts the runs was killed"):
            child.ask({"do": "spawns"}, heard=kill)
        assert gone(facts["pid"], facts["parent"])
        os.kill(heard[0]["pid"], signal.SIGKILL)
        again = parent.child(JOB, "run").ask({"do": "facts"})
        assert again["parent"] != facts["parent"]
    assert gone(again["pid"], again["parent"], within=1)


def test_a_parent_outlives_the_thread_that_started_it():
    found = []
    with Parent(EstimateError, {**os.environ, "MEMCALC_WARM": ""}) as parent:

        def start():
            found.append(parent.child(JOB, "run"))
            found.append(found[0].ask({"do": "facts"}))

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert found[0].ask({"do": "facts"})["parent"] == found[1]["parent"]


def test_a_program_that_cannot_start_a_process_says_so(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EstimateError, match="Cannot start a process: No such file"):
        Parent(EstimateError, {}).child(JOB, "run")


def test_a_parent_that_cannot_start_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "selectors.py").write_text("raise ImportError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EstimateError, match=r"exit code 1\): ImportError: broken\."):
        Parent(EstimateError, {}).child(JOB, "run").ask({"do": "facts"})


ASKER = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
from memcalc.children.client import Parent
from memcalc.children.fork import forked
from memcalc.errors import EstimateError
parent = Parent(EstimateError, {{**os.environ, "MEMCALC_WARM": ""}})
child = parent.child({JOB!r}, "run")
facts = child.ask({{"do": "facts"}})
def heard(event):
    print(os.getpid(), facts["parent"], facts["pid"], event["pid"], flush=True)
child.ask({{"do": "spawns"}}, heard=heard)
"""


@pytest.mark.parametrize("number", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL", "SIGQUIT"])
def test_nothing_outlives_an_asker_that_is_killed(number):
    asker = subprocess.Popen(
        [sys.executable, "-c", ASKER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    pids = list(map(int, asker.stdout.readline().split()))
    assert len(pids) == 4
    assert all(map(living, pids))
    asker.send_signal(signal.Signals[number])
    asker.communicate(timeout=10)
    assert gone(*pids, within=3)


def test_a_copy_of_this_process_asks_it_while_it_works():
    def work(ask):
        return {"sum": ask({"n": 4})["twice"] + ask({"n": 5})["twice"]}

    assert forked(work, "test", serve=lambda request: {"twice": 2 * request["n"]}) == {"sum": 18}


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (UsageError("no"), UsageError),
        (EstimateError("no"), EstimateError),
        (ValueError("n"), EstimateError),
    ],
)
def test_what_a_copy_asks_in_vain_fails_there_as_it_failed_here(error, kind):
    def refuse(request):
        raise error

    with pytest.raises(kind, match="n"):
        forked(lambda ask: ask({}), "test", serve=refuse)
