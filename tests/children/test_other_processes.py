"""What processes of others, and code in copies of this process, may send."""

import os
import socket
import subprocess
import sys

import pytest

from memcalc.children.channel import is_of_this_user
from memcalc.children.client import WARM, ForkServer
from memcalc.errors import EstimateError

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
            ForkServer(EstimateError, {**os.environ, WARM: name}) as server,
            pytest.raises(EstimateError, match="process of another user"),
        ):
            server.ask("tests.children.job", "test", {"do": "facts"})
        other.kill()


@pytest.mark.parametrize(
    "rubbish", ["x\n", "{}\n", "[1]\n", '{"other": 1}\n', '{"fork": 1}\n', "\x00"]
)
def test_code_that_writes_to_all_descriptors_harms_nobody_but_itself(rubbish):
    with ForkServer(EstimateError, {**os.environ, WARM: ""}) as server:
        request = {"do": "babbles", "rubbish": rubbish, "and leaves": True}
        with pytest.raises(EstimateError, match=r"unreadable message|without an answer"):
            server.ask("tests.children.job", "test", request)
        assert server.ask("tests.children.job", "test", {"do": "facts"})["pid"]


def test_variables_that_are_not_in_utf8_are_left_out():
    environment = {**os.environ, WARM: "", "ODD": "\udcff", "MINE": "1"}
    with ForkServer(EstimateError, environment) as server:
        facts = server.ask("tests.children.job", "test", {"do": "facts"})
    assert facts["mine"] == "1"
