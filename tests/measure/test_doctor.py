"""``memcalc doctor`` on this machine, and over the stand-in driver."""

import os
import subprocess
import sys

from tests.measure.driver import GIB, ROOT, SLICE, card, process


def lines(text):
    return {line[2:16].strip(): line for line in text.splitlines() if line[:2] in ("  ", "! ")}


def test_it_says_what_works_and_what_to_do_about_the_rest(cold):
    done = cold("doctor", CUDA_VISIBLE_DEVICES="", COLUMNS="80")
    assert done.returncode == 0
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    found = lines(done.stdout)
    assert {"machine", "PyTorch", "NVML", "transformers", "cache"} <= set(found)
    assert {"results", "measure"} <= set(found)
    assert "--device cpu" in found["measure"]


def test_it_lists_cards_slices_and_who_uses_them(driver):
    driver.write(
        card(used=2 * GIB),
        process(77, None, name="trainer"),
        f"mig 0 {SLICE} {10 * GIB} 0 0",
    )
    code = (
        "from memcalc.measure import doctor\n"
        "for fact in doctor._nvml_facts(): print(fact.name, fact.value, fact.advice)"
    )
    said = driver.run(code, CUDA_VISIBLE_DEVICES=SLICE)
    assert "driver 575.00" in said
    assert "2.0 GiB of 80.0 GiB in use" in said
    assert "cut into MIG slices" in said
    assert "trainer (77), memory of each unknown" in said
    assert SLICE in said


def test_a_broken_pytorch_is_a_line_and_not_a_traceback(tmp_path):
    (tmp_path / "torch.py").write_text("import os; os.abort()")
    done = subprocess.run(
        [sys.executable, "-m", "memcalc", "doctor"],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}"},
    )
    assert done.returncode == 3
    assert "Traceback" not in done.stdout + done.stderr
    assert "exit code -6" in done.stdout
