"""Draw the picture of docs/several-gpus.md: one step of one rank under FSDP2.

    python scripts/make_rank_timeline.py

It is what `memcalc report` draws for the command that the page names, with places rounded to a
tenth of a point, which halves the file.
"""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "rank-timeline.svg"
COMMAND = "report gpt2 --devices 8 --parallel fsdp2 --batch 1 --seq 256"
LONG = re.compile(r"-?\d+\.\d{2,}")
DRAWN = re.compile(r"(?<= d=\")[^\"]*")


def main() -> None:
    typed = [sys.executable, "-m", "memcalc", *COMMAND.split(), "-o", str(PICTURE)]
    subprocess.run(typed, check=True, cwd=ROOT)
    PICTURE.write_text(DRAWN.sub(rounded, PICTURE.read_text()))


def rounded(path: re.Match[str]) -> str:
    return LONG.sub(lambda number: f"{float(number[0]):.1f}", path[0])


if __name__ == "__main__":
    main()
