"""Write what evidence/faults.json says into docs/measure.md; the tests check that it is there."""

import collections
import json
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
PATH = ROOT / "docs" / "measure.md"
BEGIN, END = "<!-- faults: made by scripts/make_fault_table.py -->", "<!-- end of faults -->"

BAD = "a bad input, output or surrounding"


def text() -> str:
    data = json.loads((ROOT / "evidence" / "faults.json").read_text())
    cases = data["cases"]
    # Those of measuring are said by name; each input, output and surrounding is another case.
    names = [case["fault"] if "finished" in case else BAD for case in cases]
    broken = collections.Counter(
        name for name, case in zip(names, cases, strict=True) if case["broken"]
    )
    counts = collections.Counter(names)
    rows = [f"| {name} | {count} | {broken[name]} |" for name, count in counts.items()]
    head = (
        f"`benchmarks/faults.py` injected {len(cases) - counts[BAD]} faults into real commands, "
        f"each at a random\nmoment of the {data['span']:.1f} seconds that one takes, and gave "
        f"{counts[BAD]} commands of every verb something bad.\nA promise is broken by a traceback, "
        "by a process or file that is left behind, by a finished run\nthat is lost, or by another "
        "exit code than the right one.\n\n| fault | times | promises broken |\n|---|---:|---:|\n"
    )
    return head + "\n".join(rows) + f"\n| all | {len(cases)} | {data['broken']} |"


def document(before: str) -> str:
    start, rest = before.split(BEGIN)
    return f"{start}{BEGIN}\n{text()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PATH.write_text(document(PATH.read_text()))
