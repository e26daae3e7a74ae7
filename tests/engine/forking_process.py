"""A process that begins by some code, and then runs each piece of code in a fork."""

import json
import subprocess
import textwrap

_SERVE = """
import json, os, sys, traceback
for line in sys.stdin:
    asked = json.loads(line)
    pid = os.fork()
    if not pid:
        os.environ.update(asked["settings"])
        names = {**globals(), "answer": {}}
        try:
            exec(asked["code"], names)
            said = {"answer": names["answer"]}
        except BaseException:
            said = {"failed": traceback.format_exc()}
        os.write(1, (json.dumps(said) + "\\n").encode())
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    if status:
        os.write(1, (json.dumps({"failed": f"status {status}"}) + "\\n").encode())
"""


class ForkingProcess:
    """The process; what it begins with is there for all code that it runs.

    Args:
        python: that runs it.
        begins: the code that it begins with.
        arguments: for that code, in ``sys.argv``.
        environment: of the process.
    """

    def __init__(self, python, begins, arguments, environment):
        self._process = subprocess.Popen(
            [python, "-c", begins + _SERVE, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def ask(self, code, settings):
        """What a piece of code leaves in ``answer``; settings are variables of its fork."""
        asked = {"code": textwrap.dedent(code), "settings": settings}
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        said = json.loads(self._process.stdout.readline())
        assert "failed" not in said, said["failed"]
        return said["answer"]

    def close(self):
        """End the process."""
        self._process.stdin.close()
        self._process.wait(timeout=30)
