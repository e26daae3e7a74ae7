"""The child process that traces: PyTorch lives here, so that the command line stays light.

Reads requests from standard input, one JSON object a line, and answers each with one JSON line on
the file descriptor named in its first argument. ``{"plan": ..., "trace": file or null}`` is
answered by ``{"prediction": ...}``, its trace written to the file; with ``"grow": true`` instead
by ``{"growth": ...}``, whose trace is written there. What goes wrong is ``{"error": sentence,
"exit_code": n}``. A file named in the second argument says where the simulated program was when
the process dies without a word.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from memcalc.errors import EstimateError, MemcalcError
from memcalc.estimation.question import asked
from memcalc.files.artifact import decode, encode
from memcalc.files.trace_file import write
from memcalc.records.plan import Plan
from memcalc.records.prediction import Prediction
from memcalc.records.trace import Trace
from memcalc.symbolic.records import SymbolicTrace

if TYPE_CHECKING:
    from memcalc.registry import Choice
    from memcalc.workload.program import Program


def main(arguments: list[str]) -> None:
    """Answer the requests on standard input."""
    descriptor, breadcrumbs = int(arguments[0]), arguments[1]
    # Whatever model code prints is not ours to answer with.
    os.dup2(2, 1)
    desk = Desk(breadcrumbs)
    with os.fdopen(descriptor, "w", encoding="utf-8") as answers:
        for line in sys.stdin:
            print(json.dumps(desk.answer(json.loads(line))), file=answers, flush=True)
        # Interpreter shutdown would tear down the simulated device piece by piece.
        os._exit(0)


class Desk:
    """Answers requests, and keeps the last program for the next one that differs in size only."""

    def __init__(self, breadcrumbs: str = "") -> None:
        self._breadcrumbs = breadcrumbs
        self._program: tuple[Plan, Program] | None = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The answer to one request; an error is an answer too."""
        try:
            plan = decode(Plan, request["plan"])
            if request.get("grow"):
                growth = self.grow(plan)
                write(Path(request["trace"]), growth.trace)
                return {"growth": encode(growth.without_events)}
            prediction, trace = self.estimate(plan)
            if request["trace"] is not None:
                write(Path(request["trace"]), trace)
            return {"prediction": encode(prediction)}
        except MemcalcError as error:
            return {"error": str(error), "exit_code": error.exit_code}
        except RecursionError:
            return {"error": "The model's code recursed too deeply.", "exit_code": 3}
        except Exception as error:
            if os.environ.get("MEMCALC_DEBUG"):
                traceback.print_exc()
            said = _sentence(error, self._breadcrumbs)
            return {"error": said, "exit_code": EstimateError.exit_code}

    def estimate(self, plan: Plan) -> tuple[Prediction, Trace]:
        """Trace one plan in this process and predict from it."""
        from memcalc import registry
        from memcalc.estimation.predict import predict
        from memcalc.trace.run import trace

        question = asked(plan)
        program = self._prepared(plan, question.choice)
        state = registry.state_of(question.choice, program.inventory.parameters, plan)
        traced = trace(
            program, question.target, notes=question.notes, breadcrumbs=self._breadcrumbs
        )
        prediction = predict(
            plan,
            traced,
            state,
            rule=question.choice.rule_bytes_per_parameter,
            gpu=question.gpu,
            torch_version=question.target.torch,
        )
        return prediction, traced

    def grow(self, plan: Plan) -> SymbolicTrace:
        """Learn how the trace of a plan grows."""
        from memcalc.trace.generalize import generalize
        from memcalc.trace.run import trace

        question = asked(plan)
        program = self._prepared(plan, question.choice)
        plain = trace(program, question.target, breadcrumbs=self._breadcrumbs)
        return generalize(program, question.target, plain, breadcrumbs=self._breadcrumbs)

    def _prepared(self, plan: Plan, choice: Choice) -> Program:
        from memcalc.workload.program import prepare

        known = self._program
        if known is None or known[0] != plan.program or known[1].inputs is None:
            self._program = known = (plan.program, prepare(plan, choice))
        if known[1].inputs is None:
            return known[1]
        return replace(known[1].resized(plan.batch, plan.seq), plan=plan)


def _sentence(error: Exception, breadcrumbs: str) -> str:
    from memcalc.trace.breadcrumbs import read

    reason = " ".join(str(error).split())[:300] or "no reason given"
    return f"The simulated run stopped{read(breadcrumbs)}: {type(error).__name__}: {reason}"


if __name__ == "__main__":
    main(sys.argv[1:])
