"""Commands with inputs, outputs and surroundings that are bad, and what each has to end with."""

import hashlib
import os
import pathlib
import pickle
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass

from fault_case import judge_output, left

ROOT = pathlib.Path(__file__).resolve().parent.parent
USAGE, FAILED, PIPE = {2}, {3}, {141}
FINE = {0}
PATIENCE = 120
ESTIMATE = "estimate gpt2 --method analytic --no-cache"

# Files of every kind; tests/files/test_readers.py has more of each, given to the readers alone.
FILES = {
    "empty.json": b"",
    "deep.json": b"[" * 200_000,
    "nested.json": b'{"schema": 1, "kind": ' + b"[" * 600 + b"]" * 600 + b"}",
    "later.json": b'{"schema": 99}',
    "explained.json": b'{"schema": 1, "kind": "explanation", "record": {"peak": 3}}',
    "runs.json": b'{"schema": 1, "kind": "measurements", "runs": [{"plan": 3}]}',
    "bytes.json": bytes(range(256)),
    "memo.pickle": b"\x80\x04Nr\xff\xff\xff\x7f.",
    "cut.pickle": pickle.dumps({"segments": [], "device_traces": [[]]})[:-5],
    "code.pickle": b"cos\nsystem\n(S'touch owned'\ntR.",
    "odd.pickle": pickle.dumps({"segments": [{"blocks": 3}], "device_traces": [[3]]}),
    "text.pickle": b"not a pickle at all",
    "bad.toml": b"[runs\n",
    "deep.toml": b"a = " + b"[" * 20_000,
    "dotted.toml": b"a." * 3000 + b"b = 1\n",
    "huge.toml": b"batch = 0x" + b"f" * 9000,
    "latin.toml": b"model = '\xff'",
    "kind.toml": b"[[run]]\nmodel = 3\n",
    "rows.toml": b"run = [1, 2]\n",
    "budget.toml": b'[runs.a]\nmodel = "gpt2"\n[runs.a.limits]\npeak = "much"\n',
    "nothing.toml": b"",
    "bomb.yaml": b"a: &a {k: 1}\n"
    + b"".join(
        f"{b}: &{b} {{<<: [{','.join([f'*{a}'] * 9)}]}}\n".encode()
        for a, b in zip("abcdefgh", "bcdefghi", strict=True)
    ),
    "self.yaml": b"base_model: gpt2\nmicro_batch_size: &a [*a]\n",
    "python.yaml": b"base_model: !!python/object/apply:os.system ['touch owned']\n",
    "config.json": b'{"model_type": "gpt2", "n_layer": 1e30}',
    "precious.txt": b"do not touch",
}  # fmt: skip


@dataclass
class Bad:
    """One command."""

    name: str
    words: str
    codes: set
    surrounding: str = ""


def _cases():
    for name in sorted(name for name in FILES if name.endswith(".json")):
        for verb in ("show", "compare", "check --from"):
            yield Bad(f"{verb} reads {name}", f"{verb} {name}", USAGE)
        yield Bad(f"report reads {name}", f"report {name} -o out.html", USAGE | FAILED)
        yield Bad(f"estimate takes {name} for a model", f"estimate ./{name} --no-cache", USAGE)
    for name in sorted(name for name in FILES if name.endswith(".pickle")):
        yield Bad(f"show opens {name}", f"show {name}", USAGE)
    for name in sorted(name for name in FILES if name.endswith(".toml")):
        plan = {0, 2} if name == "nothing.toml" else USAGE
        yield Bad(f"a plan in {name}", f"{ESTIMATE} --plan {name}", plan)
        yield Bad(f"a suite in {name}", f"measure --suite {name} --device cpu", USAGE)
        yield Bad(f"budgets in {name}", f"check {name}", USAGE)
    for name in sorted(name for name in FILES if name.endswith(".yaml")):
        yield Bad(f"init starts from {name}", f"init --from {name}", USAGE)
    for verb in ("show", "compare", "check", "report", "measure --suite", "init --from"):
        more = " -o out.html" if verb == "report" else ""
        yield Bad(f"{verb}: no such file", f"{verb} missing.json{more}", USAGE)
        yield Bad(f"{verb}: a folder", f"{verb} folder{more}", USAGE)
        yield Bad(f"{verb}: a name of 300 letters", f"{verb} {'n' * 300}.json{more}", USAGE)
    for place, codes in (
        ("/dev/null", FINE), ("/dev/full", USAGE), ("link.txt", FINE), ("loop.txt", USAGE),
        ("folder", USAGE), ("no/such/out.txt", USAGE), (f"{'n' * 300}.txt", USAGE),
        ("/proc/version", USAGE), ("fresh.txt", FINE),
    ):  # fmt: skip
        yield Bad(f"written to {place[:20]}", f"{ESTIMATE} -f table -o {place}", codes)
        yield Bad(f"a result in {place[:20]}", f"run -o {place} -- sh -c 'exit 7'", {7})
    for surrounding in ("no home", "deleted folder", "read-only folder", "no file may grow"):
        yield Bad(f"estimate: {surrounding}", ESTIMATE, FINE, surrounding)
        yield Bad(f"list: {surrounding}", "list gpus", FINE, surrounding)
    for surrounding, codes in (
        ("stdout is full", FAILED), ("stdout is closed", FAILED), ("nobody reads", FINE | PIPE),
        ("stderr is closed", FINE), ("ASCII only", FINE), ("no terminal type", FINE),
    ):  # fmt: skip
        for words in (ESTIMATE, "list gpus", "doctor"):
            yield Bad(f"{words.split()[0]}: {surrounding}", words, codes, surrounding)
    for name in ("n" * 300, "loop", "folder"):
        yield Bad(f"code in {name[:9]}.py", f"estimate {name}.py:Model --input x=int64[4]", USAGE)
    for words in ("my.module.Gone", "torch.optim.Gone", "no/such.py:Class"):
        yield Bad(f"estimate --optim {words}", f"estimate gpt2 --no-cache --optim {words}", USAGE)
    yield Bad("check: deleted folder", "check", USAGE, "deleted folder")
    yield Bad("show: stdout is closed", "show --format table link.txt", USAGE, "stdout is closed")
    yield Bad("a run's name of two lines", "init gpt2 --method analytic --name $'a\\nb'", USAGE)
    yield Bad("a baseline no file can be", f"check nothing.toml --baseline {'n' * 300}", USAGE)
    yield Bad("an error: stderr is closed", "estimate no-such-model", USAGE, "stderr is closed")
    yield Bad("an error: stderr is full", "estimate no-such-model", USAGE, "stderr is full")


CASES = list(_cases())


def attempt(case: Bad, folder: pathlib.Path, mark: str) -> tuple[int, list[str]]:
    """Run one command; returns its exit code and the promises that it broke."""
    work, temporary = folder / "work", folder / "tmp"
    for place in (work, work / "folder", temporary):
        place.mkdir()
    for name, data in FILES.items():
        (work / name).write_bytes(data)
    (work / "link.txt").symlink_to("target.txt")
    for loop in ("loop.txt", "loop.py"):
        (work / loop).symlink_to(loop)
    before = _digests(work)
    command = f"{sys.executable} -m memcalc {case.words}"
    environment = {
        **os.environ, "MEMCALC_MARK": mark, "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1", "TMPDIR": str(temporary), "MEMCALC_CACHE": str(folder / "cache"),
    }  # fmt: skip
    shell = _surrounded(case.surrounding, command, environment, work)
    # Into a file: a pipe would be waited for until a process that was left behind ends as well.
    with open(folder / "said", "wb") as out:
        done = subprocess.Popen(
            ["bash", "-c", shell], cwd=work, env=environment, start_new_session=True,
            stdin=subprocess.DEVNULL, stdout=out, stderr=out,
        )  # fmt: skip
        try:
            done.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(done.pid, signal.SIGKILL)
            done.wait()
            return -1, [f"did not end in {PATIENCE} s"]
    said = (folder / "said").read_text(errors="replace")
    broken = judge_output(said, done.returncode, case.codes)
    after = _digests(work) if work.exists() else before
    broken += [f"{name} was changed" for name in before if after.get(name) != before[name]]
    broken += [f"{name} is left" for name in sorted(after) if name.startswith(".")]
    broken += ["code in a file was run"] if "owned" in after else []
    for device in ("/dev/null", "/dev/full"):
        if not stat.S_ISCHR(os.stat(device).st_mode):
            broken.append(f"{device} is no device any more")
    # What a command that must go on could not put where it was told is kept here, and said so.
    if "run -o" not in case.words:
        broken += [f"{place.name} is left in TMPDIR" for place in temporary.iterdir()]
    broken += left(mark)
    return done.returncode, broken


def _surrounded(kind: str, command: str, environment: dict, work: pathlib.Path) -> str:
    if kind == "no home":
        environment.pop("HOME", None)
        environment.pop("MEMCALC_CACHE")
    if kind == "ASCII only":
        environment |= {"LC_ALL": "C", "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    if kind == "no terminal type":
        environment |= {"TERM": "", "COLUMNS": "0"}
    if kind == "read-only folder":
        work.chmod(0o555)
    return {
        "deleted folder": f"mkdir gone && cd gone && rmdir ../gone && {command}",
        # What it says goes through a pipe into this campaign's own file, which may grow.
        "no file may grow": f"(ulimit -f 0; {command}) | cat; exit ${{PIPESTATUS[0]}}",
        "stdout is full": f"{command} > /dev/full",
        "stdout is closed": f"{command} >&-",
        "nobody reads": f"{command} | true; exit ${{PIPESTATUS[0]}}",
        "stderr is closed": f"{command} 2>&-",
        "stderr is full": f"{command} 2> /dev/full",
    }.get(kind, command)


def _digests(work: pathlib.Path) -> dict[str, str]:
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in work.iterdir()
        if path.is_file()
    }
