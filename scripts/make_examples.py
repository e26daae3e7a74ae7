"""Fill the boxes of the docs with what the commands above them really print.

A page is written by hand but for its ``text`` boxes: one that stands right below a ``bash`` box is
what the last command in that box prints, 100 columns wide. Type the pages to make anew; without
any, all are.
"""

import os
import pathlib
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
BOX = re.compile(
    r"```bash\n(?P<typed>[^`]*?)```\n\n```text\n(?P<shown>(?:(?!```).)*)```", re.DOTALL
)


def pages() -> list[pathlib.Path]:
    """All pages that show what a command prints."""
    every = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    return [page for page in every if any(True for _ in boxes(page.read_text()))]


def boxes(page: str) -> Iterator[tuple[str, str]]:
    """Each command of a page, and what the page says that it prints."""
    for found in BOX.finditer(page):
        yield command(found["typed"]), found["shown"]


def command(typed: str) -> str:
    """The last command of a box, as it is typed where memcalc is installed."""
    last = typed.replace("\\\n", " ").strip().splitlines()[-1].split(" && ")[-1]
    return last.removeprefix(".venv/bin/").split("  #")[0].strip()


def output(command: str) -> str:
    """What a command prints."""
    words = shlex.split(command)
    if words[0] != "memcalc":
        raise SystemExit(f"{command!r} is not a command of memcalc")
    # What was asked before says something in an answer: nothing was.
    with tempfile.TemporaryDirectory() as cache:
        done = subprocess.run(
            [sys.executable, "-m", *words],
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "100", "MEMCALC_CACHE": cache},
        )
    if not done.stdout:
        raise SystemExit(f"{command} printed nothing:\n{done.stderr}")
    return "".join(f"{line.rstrip()}\n" for line in done.stdout.strip("\n").splitlines())


def made(page: str) -> str:
    """The page with all its boxes made anew."""

    def box(found: re.Match[str]) -> str:
        return f"```bash\n{found['typed']}```\n\n```text\n{output(command(found['typed']))}```"

    return BOX.sub(box, page)


def main() -> None:
    """Make pages anew."""
    for page in map(pathlib.Path, sys.argv[1:] or pages()):
        page.write_text(made(page.read_text()))


if __name__ == "__main__":
    main()
