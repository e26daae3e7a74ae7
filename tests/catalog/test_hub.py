"""A config from the hub, asked of a server on this machine that answers as the hub does."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

CONFIG = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_layer": 2}
REFUSALS = {
    "org/unknown": (401, "RepoNotFound", "the hub has no model of that name"),
    "org/gated": (403, "GatedRepo", "the model is gated: log in"),
    "org/empty": (404, "EntryNotFound", "it has no config.json"),
    "org/broken": (503, "", "the hub cannot be reached"),
}

COMMITS = {"main": "0" * 40, "v1": "1" * 40}


class Hub(BaseHTTPRequestHandler):
    """Serves one config, and refuses the others as the hub does."""

    def do_HEAD(self):
        self.answer()

    def do_GET(self):
        self.answer()

    def answer(self):
        name, _, rest = self.path.lstrip("/").partition("/resolve/")
        revision = rest.split("/")[0]
        body = json.dumps(CONFIG).encode()
        status, code, _ = REFUSALS.get(name, (200, "", ""))
        if status == 200 and revision not in COMMITS:
            status, code = 404, "RevisionNotFound"
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
            self.send_header("X-Error-Message", code)
        if status == 200:
            self.send_header("ETag", '"0123456789abcdef0123456789abcdef01234567"')
            self.send_header("X-Repo-Commit", COMMITS[revision])
        self.send_header("Content-Length", str(len(body)) if status == 200 else "0")
        self.end_headers()
        if status == 200 and self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def hub():
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.fixture
def ask(tmp_path):
    def run(endpoint, name, **more):
        code = (
            "from memcalc.catalog.plan import make\nfrom memcalc.estimation.question import check\n"
            f"found = check(make({{'model': {name!r}}}))\n"
            "print(found.source.config, found.notes_at(None))"
        )
        environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path)}
        environment.pop("HF_HUB_OFFLINE", None)
        environment |= more
        return subprocess.run(
            [sys.executable, "-c", code],
            capture_output=True,
            text=True,
            timeout=20,
            env=environment,
            check=False,
        )

    return run


def test_a_config_is_taken_from_the_hub_and_kept_for_when_it_is_gone(hub, ask):
    assert "'n_layer': 2" in ask(hub, "org/fine").stdout
    assert "'n_layer': 2" in ask("http://127.0.0.1:9", "org/fine").stdout


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_told_apart(hub, ask, name):
    assert REFUSALS[name][2] in ask(hub, name).stderr


def test_without_a_network_one_question_is_asked_and_nothing_is_logged(ask):
    done = ask("http://127.0.0.1:9", "org/fine")
    assert "the hub cannot be reached, and the model is neither bundled" in done.stderr
    assert "Retrying" not in done.stderr


def test_offline_asks_nobody_and_finds_what_the_hubs_cache_has(hub, ask, memcalc):
    ask(hub, "org/fine")
    assert "'n_layer': 2" in ask(hub, "org/fine", HF_HUB_OFFLINE="1").stdout
    assert "--offline" in ask(hub, "org/other", HF_HUB_OFFLINE="1").stderr
    done = memcalc("estimate", "org/other", "--offline", HF_HUB_OFFLINE="", HF_ENDPOINT=hub)
    assert done.returncode == 2
    assert "offline, and not bundled or in the hub's cache: leave out --offline" in done.stderr


def test_an_answer_says_which_revision_its_config_is_of(hub, ask):
    assert f"revision {'0' * 40} of the hub" in ask(hub, "org/fine").stdout
    assert f"revision {'1' * 40} of the hub" in ask(hub, "org/fine@v1").stdout
    assert f"revision {'0' * 40} of the hub" in ask("http://127.0.0.1:9", "org/fine").stdout
    assert "on the hub it has no revision v2" in ask(hub, "org/fine@v2").stderr
