"""What processes of others, and code in copies of this process, may send."""

import os
import socket
import subprocess
import sys

import pytest

from memcalc.children.child import is_of_this_user
from memcalc.children.client import WARM, Parent
from memcalc.errors import EstimateError
from tests.conftest import ROOT

_LISTENS = """
import os, socket, sys
os.setresuid(12345, 12345, 12345)
door = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
door.bind("\\0" + sys.argv[1])
door.listen()
print(flush=True)
door.accept()[0].recv(9)
"""


def test_both_ends_of_a_socket_are_of_this_user():
    for end in socket.socketpair():
        assert is_of_this_user(end)
        end.close()


def test_a_warm_process_of_another_user_is_not_asked():
    if os.getuid():
        pytest.skip("this user is no other")
    name = f"memcalc-other-{os.getpid()}"
    with subprocess.Popen([sys.executable, "-c", _LISTENS, name], stdout=subprocess.PIPE) as other:
        other.stdout.readline()
        with (
            Parent(EstimateError, {**os.environ, WARM: name}) as parent,
            pytest.raises(EstimateError, match="process of another user"),
        ):
            parent.child("tests.children.job", "test")
        other.kill()


_WRITES = """
import os, sys
sys.path.append({root!r})
from memcalc.children.fork import forked
from memcalc.errors import EstimateError
def writes(ask):
    for number in range(3, 64):
        try:
            os.write(number, {rubbish!r})
        except OSError:
            pass
    return {{}}
try:
    forked(writes, "work")
except EstimateError as error:
    print(error)
"""


@pytest.mark.parametrize("rubbish", [b"x\n", b"{}\n", b"[1]\n", b'{"other": 1}\n', b"\xff\n"])
def test_code_that_writes_to_all_descriptors_is_one_sentence(rubbish):
    code = _WRITES.format(root=str(ROOT), rubbish=rubbish)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "descriptors that it has not opened" in done.stdout
    assert done.stderr == ""


def test_variables_that_are_not_in_utf8_are_left_out():
    environment = {**os.environ, WARM: "", "ODD": "\udcff", "MINE": "1"}
    with Parent(EstimateError, environment) as parent:
        facts = parent.child("tests.children.job", "test").ask({"do": "facts"})
    assert facts["mine"] == "1"
