"""The child process that trains one plan for real and says what it cost.

Reads one JSON request from standard input, ``{"plan": ..., "device": ..., "steps": n}``, and
writes JSON lines to the file descriptor named in its argument: ``{"phase": ...}`` as phases end,
then ``{"measurement": ...}`` or ``{"error": sentence, "exit_code": n}``.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, TextIO

from memcalc.artifact import decode, encode
from memcalc.errors import MeasureError, MemcalcError
from memcalc.records import Plan


def main(arguments: list[str]) -> None:
    """Answer the request on standard input."""
    request = json.load(sys.stdin)
    os.dup2(2, 1)
    with os.fdopen(int(arguments[0]), "w", encoding="utf-8") as answer:
        print(json.dumps(_answer(request, answer)), file=answer, flush=True)
        answer.flush()
        os._exit(0)


def _answer(request: dict[str, Any], out: TextIO) -> dict[str, Any]:
    from memcalc.measure.run import Options, measure

    def said(reading: Any) -> None:
        print(json.dumps({"phase": encode(reading)}), file=out, flush=True)

    options = Options(
        device=request["device"], steps=request["steps"], snapshot=request.get("snapshot")
    )
    try:
        return {"measurement": encode(measure(decode(Plan, request["plan"]), options, said))}
    except MemcalcError as error:
        return {"error": str(error), "exit_code": error.exit_code}
    except Exception as error:
        if os.environ.get("MEMCALC_DEBUG"):
            traceback.print_exc()
        reason = " ".join(str(error).split())[:300]
        sentence = f"The run failed: {type(error).__name__}: {reason}"
        return {"error": sentence, "exit_code": MeasureError.exit_code}


if __name__ == "__main__":
    main(sys.argv[1:])
