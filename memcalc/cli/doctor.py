"""``memcalc doctor``."""

import typer

from memcalc.cli.declare import verb
from memcalc.cli.output import put, width


@verb("memcalc doctor")
def command() -> None:
    """Report what this machine can measure, what is missing and how to fix it."""
    from memcalc.engine.environment.description import describe
    from memcalc.measure.doctor import examine
    from memcalc.report.terminal import facts_text

    *facts, verdict = examine()
    facts += [*describe(), verdict]
    put(facts_text(facts, width()))
    if not facts[-1].well:
        raise typer.Exit(3)
