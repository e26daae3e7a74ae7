"""A report as JUnit XML, in the dialect that Jenkins and GitLab read (junit-10.xsd)."""

from xml.etree import ElementTree

from memcalc import untrusted_text
from memcalc.budgets.formats import text
from memcalc.budgets.records import Report, Status, Verdict


def render(report: Report) -> str:
    """One suite for each run and one case for each budget: over fails, could not tell errs."""
    root = ElementTree.Element("testsuites", {"name": "memcalc check", **_counts(report.verdicts)})
    groups: dict[str, list[Verdict]] = {}
    for verdict in report.verdicts:
        groups.setdefault(verdict.budget.run, []).append(verdict)
    for run, verdicts in groups.items():
        skipped = sum(verdict.status is Status.NO_BASELINE for verdict in verdicts)
        described = {"name": untrusted_text.line(run), "skipped": str(skipped), **_counts(verdicts)}
        suite = ElementTree.SubElement(root, "testsuite", described)
        for verdict in verdicts:
            _case(suite, verdict)
        if report.warnings:
            noise = ElementTree.SubElement(suite, "system-err")
            noise.text = "\n".join(map(untrusted_text.line, report.warnings))
    ElementTree.indent(root)
    body = untrusted_text.lines(ElementTree.tostring(root, encoding="unicode"))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _case(suite: ElementTree.Element, verdict: Verdict) -> None:
    budget = verdict.budget
    case = ElementTree.SubElement(
        suite,
        "testcase",
        name=untrusted_text.line(budget.name),
        classname=untrusted_text.line(f"memcalc.{budget.run}"),
    )
    message = untrusted_text.line(text.sentence(verdict))
    tags = {Status.OVER: "failure", Status.UNKNOWN: "error", Status.NO_BASELINE: "skipped"}
    if verdict.status in tags:
        tag = tags[verdict.status]
        found = ElementTree.SubElement(case, tag, message=message, type=verdict.status.value)
        found.text = untrusted_text.line(f"{budget.where}: {text.sentence(verdict)}")
    else:
        ElementTree.SubElement(case, "system-out").text = message


def _counts(verdicts: tuple[Verdict, ...] | list[Verdict]) -> dict[str, str]:
    return {
        "tests": str(len(verdicts)),
        "failures": str(sum(verdict.status is Status.OVER for verdict in verdicts)),
        "errors": str(sum(verdict.status is Status.UNKNOWN for verdict in verdicts)),
    }
