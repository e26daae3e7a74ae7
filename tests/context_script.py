"""The script that makes the ranges of what is outside the allocator, as a module."""

import importlib.util
import sys
from pathlib import Path

_PATH = Path(__file__).parent.parent / "scripts" / "make_context_ranges.py"
_spec = importlib.util.spec_from_file_location("make_context_ranges", _PATH)
script = sys.modules[_spec.name] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(script)
Reading, Stage, DOCS = script.Reading, script.Stage, script.DOCS
