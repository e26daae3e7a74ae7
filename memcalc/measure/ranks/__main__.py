"""One rank, started by torchrun: trains and reports to the parent.

It is a child like any other (``memcalc.children``), but its socket is one that it connects to, and
its environment is torchrun's. Its exit code tells torchrun whether the others can go on.
"""

import os
import signal
import socket
import sys

from memcalc.children import child
from memcalc.children.child import Breadcrumbs
from memcalc.children.fork import die_with
from memcalc.measure.ranks import rank


def main(address: str, launcher: int) -> None:
    """Do what is asked, and leave."""
    die_with(launcher, signal.SIGKILL)
    end = socket.socket(socket.AF_UNIX)
    end.connect(f"\0{address}")
    end.sendall(b'{"rank": %d}\n' % int(os.environ["RANK"]))
    child.serve(end, rank.__name__, "run", Breadcrumbs())
    sys.stderr.flush()
    os._exit(rank.exit_code[0])


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
