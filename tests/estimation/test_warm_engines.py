"""The second question of a process imports nothing, and no warm process outlives who asked."""

import os
import subprocess
import sys

import psutil

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
