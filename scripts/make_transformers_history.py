"""Write configs/transformers_history.json: what releases of transformers did otherwise.

    mkdir wheels && cd wheels
    pip download --no-deps transformers==4.36.2     # and so on, every release that shall count
    python scripts/make_transformers_history.py FOLDER

Read out of each release's own source, without running it, for every model type:

- ``sdpa``: the first release read in which its file calls PyTorch's scaled_dot_product_attention
  or says that it supports it; before that its attention was made of single operators;
- ``cache``: the first release read, if not the first of all, in which its file knows a ``Cache``;
- ``loss``: how its causal language model made its loss, from the first release on that did so.
"""

from __future__ import annotations

import argparse
import ast
import json
import pathlib
import re
import zipfile
from collections.abc import Iterator

TARGET = pathlib.Path(__file__).resolve().parent.parent / "configs" / "transformers_history.json"
AUTO = "transformers/models/auto/modeling_auto.py"
LOSSES = "transformers/loss/loss_utils.py"
MODELING = re.compile(r"transformers/models/(?:deprecated/)?\w+/modeling_(?!tf_|flax_)\w+\.py")
SDPA = re.compile(r"_supports_sdpa\s*=\s*True|scaled_dot_product_attention\(|[\"']sdpa[\"']\s*:")
CACHE = re.compile(r"cache_utils import .*Cache")
CLASS = re.compile(r"^class (\w+)\(", re.MULTILINE)
UPCAST = re.compile(r"(logits|scores)\s*=\s*\w+(\.float\(\)|\.to\(torch\.float32\))")
SHIFT = re.compile(r"\[(\.\.\.|:), ?:-1(, ?:)?\]\.contiguous\(\)")
MAPS = ("MODEL_MAPPING_NAMES", "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES")


class Release:
    """The source of one release."""

    def __init__(self, wheel: pathlib.Path) -> None:
        self.version = wheel.name.split("-")[1]
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            self.maps = _maps(archive.read(AUTO).decode())
            losses = archive.read(LOSSES).decode() if LOSSES in names else ""
            self.sources = {n: archive.read(n).decode() for n in names if MODELING.fullmatch(n)}
        self.home = {c: n for n, text in self.sources.items() for c in CLASS.findall(text)}
        function = _body(losses, "ForCausalLMLoss") or ""
        self.function = "function-shift" if "shift_logits" in function else "function"

    def has_sdpa(self, model_type: str) -> bool | None:
        """Its file knows SDPA; ``None``: there is no such model."""
        return self._knows(SDPA, model_type)

    def has_cache(self, model_type: str) -> bool | None:
        """Its file knows a cache of the library's; ``None``: there is no such model."""
        return self._knows(CACHE, model_type)

    def _knows(self, words: re.Pattern[str], model_type: str) -> bool | None:
        homes = [self.home.get(names[model_type]) for names in self.maps if model_type in names]
        known = [home for home in homes if home is not None]
        return any(words.search(self.sources[home]) for home in known) if known else None

    def loss(self, model_type: str) -> str | None:
        """How its causal language model makes its loss; ``None``: it has none, or another way."""
        name = self.maps[1].get(model_type)
        home = self.home.get(name or "")
        body = _body(self.sources[home], str(name)) if home is not None else None
        if body is None or "labels" not in body:
            return None
        if "self.loss_function(" in body:
            return self.function
        if not SHIFT.search(body):
            return None
        return "own-float" if UPCAST.search(body) else "own"


def _maps(source: str) -> list[dict[str, str]]:
    """Model type to class: of base models, and of causal language models."""
    found: dict[str, dict[str, str]] = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        name = node.targets[0].id
        if name in MAPS and isinstance(node.value, ast.Call):
            found[name] = {k: v for k, v in _pairs(node.value) if isinstance(v, str)}
    return [found.get(name, {}) for name in MAPS]


def _pairs(call: ast.Call) -> Iterator[tuple[str, object]]:
    for entry in getattr(call.args[0], "elts", ()):
        if isinstance(entry, ast.Tuple):
            key, value = map(ast.literal_eval, entry.elts)
            yield key, value[0] if isinstance(value, tuple) else value


def _body(source: str, name: str) -> str | None:
    """The source of a function, or of a class."""
    found = re.search(rf"^(class|def) {name}\(.*?(?=^\S|\Z)", source, re.MULTILINE | re.DOTALL)
    if found is None:
        return None
    if found[1] == "class":
        return found[0]
    rest = source[found.start() :]
    return rest[: rest.find("\ndef ", 1)]


def main() -> None:
    """Read the wheels of a folder, oldest first."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path)
    wheels = parser.parse_args().folder.glob("transformers-*.whl")
    order = sorted(wheels, key=lambda path: [int(n) for n in path.name.split("-")[1].split(".")])
    history: dict[str, dict[str, object]] = {}
    versions = []
    for wheel in order:
        release = Release(wheel)
        versions.append(release.version)
        for model_type in sorted({*release.maps[0], *release.maps[1]}):
            entry = history.setdefault(model_type, {"since": release.version})
            if "sdpa" not in entry and release.has_sdpa(model_type):
                entry["sdpa"] = release.version
            if "cache" not in entry and release.has_cache(model_type):
                entry["cache"] = release.version
            form, forms = release.loss(model_type), entry.setdefault("loss", [])
            assert isinstance(forms, list)
            if form is not None and form != (forms[-1][1] if forms else None):
                forms.append([release.version, form])
    shipped = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(history.items()))
    TARGET.write_text(f'{{"releases": {json.dumps(versions)},\n "models": {{\n{shipped}\n }}\n}}\n')


if __name__ == "__main__":
    main()
