"""Whatever a child does, it costs one job, and is said in one sentence."""

import base64
import functools
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import psutil
import pytest

from memcalc.children.client import ForkServer
from memcalc.errors import EstimateError, UsageError

JOB = "tests.children.job"


@pytest.fixture(scope="module")
def server():
    with ForkServer(EstimateError, {**os.environ, "MINE": "yes"}) as server:
        yield server


@pytest.fixture
def ask(server):
    return functools.partial(server.ask, JOB, "simulated run", hint=("a model",))


def living(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def children_of(parent):
    return [one.pid for one in psutil.Process(parent).children(recursive=True)]


def gone(*pids, within=5.0):
    deadline = time.monotonic() + within
    while any(map(living, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(living, pids))


def test_each_question_has_a_child_of_its_own_that_is_gone_once_it_has_answered(ask):
    assert ask({"do": "echo", "text": "ä"}) == {"did": "echo", "said": "ä"}
    first, second = ask({"do": "facts"}), ask({"do": "facts"})
    assert first["pid"] != second["pid"]
    assert first["parent"] == second["parent"]
    assert not living(first["pid"])
    assert not living(second["pid"])


def test_it_works_where_the_asker_is_and_what_is_heavy_is_imported_in_its_server(ask):
    facts = ask({"do": "facts"})
    assert facts["folder"] == os.getcwd()
    assert facts["mine"] == "yes"
    assert facts["warmed"][-1] == ["a model", facts["parent"]]


def test_messages_of_any_size_arrive_whole(ask):
    text = os.urandom(3 << 20)
    assert base64.b64decode(ask({"do": "echo", "text": text})["said"]) == text


def test_events_come_in_order_and_a_job_that_waits_goes_on_when_it_was_heard(ask):
    heard = []
    answer = ask({"do": "counts"}, heard=heard.append)
    assert [event["number"] for event in heard] == [0, 1, 2, "last"]
    assert answer["gone on"] is True


def test_children_side_by_side_do_not_hear_each_other(ask):
    found = []

    def beside(event):
        found.append(ask({"do": "facts"}))
        with pytest.raises(EstimateError):
            ask({"do": "babbles", "and leaves": True})
        found.append(ask({"do": "echo", "text": "1"}))

    alone = ask({"do": "facts"})
    assert ask({"do": "waits"}, heard=beside)["gone on"] is True
    # It has no more descriptors than one without siblings: theirs are closed.
    assert len(found[0]["open"]) == len(alone["open"])
    assert found[1]["said"] == "1"


def test_a_child_asks_its_server_for_forks_of_their_own(ask):
    requests = [{"do": "facts"}, {"do": "echo", "text": "2"}, {"do": "asks", "requests": []}]
    found = ask({"do": "asks", "requests": requests})
    facts, echo, nested = found["said"]
    assert {facts["parent"], nested["parent"]} == {found["parent"]}
    assert facts["folder"] == os.getcwd()
    assert facts["mine"] == "yes"
    assert echo["said"] == "2"


@pytest.mark.parametrize(
    ("request_", "kind", "words"),
    [
        ({"do": "refuses"}, UsageError, r"^Ask otherwise\.$"),
        ({"do": "fails"}, EstimateError, "fork of a fork stopped in layer.3: ValueError"),
        ({"do": "dies", "signal": "SIGSEGV"}, EstimateError, "fork of a fork was ended by SIGSEGV"),
    ],
)
def test_what_a_child_asks_in_vain_fails_there_as_it_would_here(ask, request_, kind, words):
    with pytest.raises(kind, match=words):
        ask({"do": "asks", "requests": [request_]})


def test_what_a_child_has_asked_for_ends_with_it(ask):
    made = []
    with pytest.raises(TimeoutError):
        ask({"do": "asks", "requests": [{"do": "hangs"}]}, timeout=1)
    # The server is free again, and answers; nothing of the others is left.
    made.append(ask({"do": "facts"}))
    assert [pid for pid in children_of(made[0]["parent"]) if living(pid)] == []


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        ({"do": "fails"}, "The simulated run stopped in layer.3: ValueError: of its own"),
        ({"do": "recurses"}, "its code recursed too deeply"),
        ({"do": "exits"}, r"its code called sys.exit\(0\)"),
        ({"do": "interrupts"}, "KeyboardInterrupt: no reason given"),
    ],
)
def test_a_job_that_raises_is_one_sentence(ask, request_, words):
    with pytest.raises(EstimateError, match=words) as raised:
        ask(request_)
    assert raised.value.__cause__ is None


def test_a_question_that_is_wrong_is_told_as_such(ask):
    with pytest.raises(UsageError, match=r"^Ask otherwise\.$"):
        ask({"do": "refuses"})


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
def test_a_child_that_dies_is_one_sentence_with_its_last_place(ask, request_, words):
    with pytest.raises(EstimateError, match=words) as raised:
        ask(request_)
    assert isinstance(raised.value.__cause__, ChildProcessError)


def test_a_child_that_prints_rubbish_into_its_answers_is_understood_if_it_goes_on(ask):
    assert ask({"do": "babbles"})["did"] == "babbles"
    assert ask({"do": "echo", "text": "on"})["said"] == "on"


def test_a_child_that_prints_a_lot_is_not_held_up(ask):
    assert ask({"do": "floods"}, timeout=20)["did"] == "floods"


def test_a_child_that_takes_too_long_is_ended_with_all_it_started(ask):
    made = []
    with pytest.raises(TimeoutError):
        ask({"do": "spawns"}, heard=made.append, timeout=1)
    assert gone(made[0]["pid"], made[0]["own"], within=1)


def test_time_is_told_while_a_job_is_silent(ask):
    ticks = []
    with pytest.raises(TimeoutError):
        ask({"do": "hangs"}, tick=lambda: ticks.append(1), interval=0.05, timeout=0.5)
    assert 5 <= len(ticks) <= 12


def test_an_asker_that_is_interrupted_leaves_no_job_behind(ask):
    made = []

    def interrupted(event):
        made.append(event)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask({"do": "spawns"}, heard=interrupted)
    assert gone(made[0]["pid"], made[0]["own"], within=1)


def test_who_closes_a_server_that_another_thread_asks_leaves_the_last_word_to_that_thread():
    began, heard = threading.Event(), []
    with ForkServer(EstimateError, os.environ) as server:

        def ask():
            try:
                server.ask(JOB, "run", {"do": "spawns"}, heard=lambda event: began.set())
            except EstimateError as error:
                heard.append(str(error))

        asker = threading.Thread(target=ask)
        asker.start()
        assert began.wait(10)
    asker.join(2)
    assert len(heard) == 1


def test_a_server_that_dies_takes_its_children_and_is_replaced():
    with ForkServer(EstimateError, os.environ) as server:
        facts = server.ask(JOB, "run", {"do": "facts"})
        heard = []

        def kill(event):
            heard.append(event)
            os.kill(facts["parent"], signal.SIGKILL)

        with pytest.raises(EstimateError, match="process that starts the runs was killed"):
            server.ask(JOB, "run", {"do": "spawns"}, heard=kill)
        assert gone(heard[0]["own"], facts["parent"])
        os.kill(heard[0]["pid"], signal.SIGKILL)
        again = server.ask(JOB, "run", {"do": "facts"})
        assert again["parent"] != facts["parent"]
    assert gone(again["parent"], within=1)


def test_a_server_outlives_the_thread_that_started_it():
    found = []
    with ForkServer(EstimateError, os.environ) as server:

        def start():
            found.append(server.ask(JOB, "run", {"do": "facts"}))

        thread = threading.Thread(target=start)
        thread.start()
        thread.join()
        time.sleep(0.2)
        assert server.ask(JOB, "run", {"do": "facts"})["parent"] == found[0]["parent"]


@pytest.mark.parametrize(
    "rubbish", ["x\n", "{}\n", "[1]\n", '{"other": 1}\n', '{"fork": 1}\n', "\x00"]
)
def test_code_that_writes_to_all_descriptors_harms_nobody_but_itself(rubbish):
    with ForkServer(EstimateError, os.environ) as server:
        request = {"do": "babbles", "rubbish": rubbish, "and leaves": True}
        with pytest.raises(EstimateError, match=r"unreadable message|without an answer"):
            server.ask(JOB, "test", request)
        assert server.ask(JOB, "test", {"do": "facts"})["pid"]


def test_variables_that_are_not_in_utf8_are_left_out():
    environment = {**os.environ, "ODD": "\udcff", "MINE": "1"}
    with ForkServer(EstimateError, environment) as server:
        facts = server.ask(JOB, "test", {"do": "facts"})
    assert facts["mine"] == "1"


def test_a_program_that_cannot_start_a_process_says_so(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(EstimateError, match="Cannot start a process: No such file"):
        ForkServer(EstimateError, {}).ask(JOB, "run", {"do": "facts"})


def test_a_server_that_cannot_start_is_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "selectors.py").write_text("raise ImportError('broken')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(EstimateError, match=r"exit code 1\): ImportError: broken\."):
        ForkServer(EstimateError, {}).ask(JOB, "run", {"do": "facts"})


ASKER = f"""
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
for number in (signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, signal.SIG_DFL)
from memcalc.children.client import ForkServer
from memcalc.errors import EstimateError
server = ForkServer(EstimateError, os.environ)
facts = server.ask({JOB!r}, "run", {{"do": "facts"}})
def heard(event):
    print(os.getpid(), facts["parent"], event["own"], event["pid"], flush=True)
server.ask({JOB!r}, "run", {{"do": "spawns"}}, heard=heard)
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
    assert gone(*pids, within=10)
