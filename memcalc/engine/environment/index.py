"""Releases of a package index for this Python, and the sizes of their wheels.

Only asked before something is fetched, to say how much it will be. An index that does not answer
in JSON (PEP 691) leaves the release to the installer and the size unknown.
"""

from __future__ import annotations

import json
import os
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any

import msgspec

from memcalc.engine.environment.release import Release

_DEFAULT = "https://pypi.org/simple"
_JSON = "application/vnd.pypi.simple.v1+json"
_PATIENCE = 15.0
_CERTIFICATES = ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")
_STABLE = re.compile(r"\d+(\.\d+)+")


class Wheel(msgspec.Struct, frozen=True):
    """A wheel that this Python can install."""

    version: str
    bytes: int | None


class Offer(msgspec.Struct, frozen=True):
    """What an index has of a package."""

    wheels: tuple[Wheel, ...]
    """For this Python, oldest first."""
    others: tuple[str, ...]
    """Interpreters that it has wheels of the asked release for: ``cp310``."""


def url(settings: Mapping[str, str]) -> str | None:
    """The index of the machine's settings; ``None``: none may be asked.

    Args:
        settings: of pip, from its files and its variables: ``{"index-url": ...}``.
    """
    if "no-index" in settings and settings["no-index"].lower() not in ("", "0", "false", "no"):
        return None
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL"):
        if os.environ.get(name):
            return os.environ[name]
    return settings.get("index-url") or _DEFAULT


def ask(index: str, package: str, release: Release | None) -> Offer | None:
    """What the index has; ``None``: it does not answer, or not in JSON.

    Args:
        index: address of its simple pages.
        package: its normal name.
        release: which one; ``None``: all of them.
    """
    request = urllib.request.Request(f"{index.rstrip('/')}/{package}/", headers={"Accept": _JSON})
    try:
        context = ssl.create_default_context(cafile=_certificates())
        with urllib.request.urlopen(request, timeout=_PATIENCE, context=context) as answer:
            files = json.load(answer)["files"]
        return _offer(files, release)
    except urllib.error.HTTPError as error:
        return Offer((), ()) if error.code == 404 else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _certificates() -> str | None:
    named = (os.environ.get(name) for name in _CERTIFICATES)
    return next((path for path in named if path and os.path.isfile(path)), None)


def _offer(files: list[dict[str, Any]], release: Release | None) -> Offer:
    from packaging.tags import sys_tags
    from packaging.utils import InvalidWheelFilename, parse_wheel_filename

    here = frozenset(sys_tags())
    wheels: dict[str, Wheel] = {}
    others: set[str] = set()
    for file in files:
        if file.get("yanked"):
            continue
        try:
            _, version, _, tags = parse_wheel_filename(file["filename"])
        except InvalidWheelFilename:
            continue
        wanted = release is None or release.matches(str(version))
        if not wanted or not _STABLE.fullmatch(str(version)):
            continue
        others |= {tag.interpreter for tag in tags}
        if tags & here:
            size = file.get("size")
            wheels[str(version)] = Wheel(str(version), size if isinstance(size, int) else None)
    by_number = sorted(wheels.values(), key=lambda w: [int(n) for n in w.version.split(".")])
    return Offer(tuple(by_number), tuple(sorted(others, key=lambda name: (len(name), name))))
