"""Finds a model's config by name: bundled, local, on the hub, or a callable."""

import functools
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from memcalc.catalog.architectures import validate
from memcalc.errors import UsageError, find_similar, unknown
from memcalc.files import untrusted_values
from memcalc.files.offline import GO_ONLINE, is_offline
from memcalc.files.shipped import configs
from memcalc.imports import is_named

_LARGEST_CONFIG = 10 << 20
_TUNED = re.compile(r"-(instruct|chat|it)(?=-|$)", re.IGNORECASE)
TAKEN = "is taken for"
"""Words of the note on a model whose short name was given."""
_COPIES = "unsloth/"
"""An organization with copies of models; those that are not quantized have the same sizes."""
_DIFFUSERS_NAMES = re.compile(r"^(sdxl|flux|sd-?[123])|stable-diffusion|FLUX\.", re.IGNORECASE)
_PAGES = "https://huggingface.co/"
_FORMER_ORGS = frozenset(
    "google-t5 google-bert facebookai distilbert albert openai-community".split()
)
"""Organizations whose models had none in the past: bert-base-cased, gpt2."""


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A model and its config."""

    name: str
    origin: str
    """``bundled``, ``local``, ``hub`` or ``callable``."""
    config: dict[str, Any] | None = None
    factory: str | None = None
    """``package.module:callable`` returning an ``nn.Module``."""
    tuned: str = ""
    """The model on the hub that was named, if this is a bundled one of the same sizes."""
    notes: tuple[str, ...] = ()
    """A sentence on the model that was taken for the named one; () if it is the named one."""
    revision: str | None = None
    """The config's commit on the hub."""

    @property
    def digest(self) -> str | None:
        """A digest of the config, which shows whether the config has changed."""
        if self.config is None:
            return None
        return hashlib.sha256(json.dumps(self.config, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def model_type(self) -> str:
        """The architecture, such as ``distilbert``; empty for a callable."""
        return str(self.config["model_type"]) if self.config is not None else ""

    def was_saved_by(self, class_name: str) -> bool:
        """Return True if the config says that this class saved the checkpoint, or names none."""
        saved = (self.config or {}).get("architectures")
        return not saved or class_name in saved


@functools.cache
def list_bundled_files() -> dict[str, Path]:
    """Return the files of the bundled models by name."""
    files = sorted((configs() / "models").glob("*.json"))
    return {file.stem.replace("--", "/"): file for file in files}


def find(name: str) -> ModelSource:
    """Find a model's config: bundled, in a local file, on the Hugging Face hub, or a callable.

    Args:
        name: a bundled name (``gpt2`` and ``openai-community/gpt2`` are the same), a folder with
            a config.json, a config.json, a hub name (``org/model``, ``org/model@revision``), or
            ``package.module:callable``.

    Raises:
        UsageError: there is no such model, or its config makes no sense.
    """
    if name.startswith(_PAGES):
        name = name.removeprefix(_PAGES).rstrip("/")
    if is_named(name):
        return ModelSource(name=name, origin="callable", factory=name)
    file = None if is_local(name) else _find_bundled_file(name)
    if file is not None:
        return ModelSource(
            name=_model_name(file), origin="bundled", config=_read_shipped_config(file)
        )
    if _DIFFUSERS_NAMES.search(name):
        raise UsageError(
            f"{name} is a pipeline of diffusers: type memcalc simulate -- python train.py with a "
            "script that trains its UNet or transformer."
        )
    if name.endswith(".py"):
        raise UsageError(
            f"{name} is a script: type memcalc simulate -- python {name}, or name a function in "
            f"it that returns a model, as {name}:make."
        )
    path = Path(os.path.expanduser(name))
    if is_local(name) or os.path.exists(path):
        config = _read_config(path / "config.json" if os.path.isdir(path) else path)
        return _check_config(name, "local", config)
    same = _find_same_sizes(name)
    if same is not None:
        return same
    config, revision = _from_hub(name)
    return replace(_check_config(name, "hub", config), revision=revision)


def canonical(name: str) -> str:
    """Return the catalog's spelling of a bundled model's name; other names do not change."""
    if is_named(name) or is_local(name):
        return name
    file = _find_bundled_file(name)
    return _model_name(file) if file is not None else name


@functools.cache
def _index_by_name() -> dict[str, Path]:
    return {name.lower(): file for name, file in list_bundled_files().items()}


def find_shipped_config(name: str) -> dict[str, Any] | None:
    """Return the shipped config of a model by its name on the hub, or None."""
    if is_named(name) or is_local(name):
        return None
    file = _find_bundled_file(name)
    if file is not None:
        return dict(_read_shipped_config(file))
    same = _find_same_sizes(name) if "/" in name else None
    return same.config if same is not None else None


def is_local(name: str) -> bool:
    """Return True if a name can only mean a file or folder."""
    return name.startswith((".", "/", "~")) or name.endswith(".json")


def _model_name(file: Path) -> str:
    return file.stem.replace("--", "/")


def _find_same_sizes(name: str) -> ModelSource | None:
    """Find a bundled model with the sizes of a named one (such as its base), or None.

    A later revision of a tuned model has another base: Mistral-7B-Instruct-v0.3 does not match
    Mistral-7B-v0.1.
    """
    if is_local(name):
        return None
    wanted = name.lower().removeprefix(_COPIES)
    bare = _TUNED.sub("", wanted, count=1)
    alias = _read_aliases().get(wanted) or _read_aliases().get(bare)
    found = _index_by_name()[alias["of"].lower()] if alias is not None else None
    others = (bare, f"{bare}-pt") if bare != name.lower() else (f"{bare}-pt",)
    found = found or next((file for one in others if (file := _find_bundled_file(one))), None)
    if found is None and "/" not in name:
        # On the hub names have an organization: this one is short for the model with all its words.
        close = find_similar(name, list_bundled_files(), whole=True)
        found = list_bundled_files()[close[0]] if len(close) == 1 else None
    if found is None:
        return None
    base = _model_name(found)
    note = f"the config is that of {base}, which {name} was tuned from"
    if "/" not in name:
        note = f"{name} {TAKEN} {base}"
    elif bare == wanted or alias is not None:
        note = f"the config is that of {base}, whose sizes {name} has"
    settings = {key: value for key, value in (alias or {}).items() if key != "of"}
    return ModelSource(
        name=base,
        origin="bundled",
        config={**_read_shipped_config(found), **settings},
        tuned=name if "/" in name else "",
        notes=(note,),
    )


@functools.cache
def _read_aliases() -> dict[str, Any]:
    """Return models whose sizes equal a bundled model's, by lower-case names."""
    known = json.loads((configs() / "aliases.json").read_text())
    short = {name.partition("/")[2] or name: alias for name, alias in known.items()}
    return {name.lower(): alias for name, alias in {**short, **known}.items()}


def _find_bundled_file(name: str) -> Path | None:
    """Return the config file of a bundled model by any spelling of its name, or None."""
    wanted = name.replace("--", "/").lower()
    names = _index_by_name()
    if wanted in names:
        return names[wanted]
    org, slash, bare = wanted.partition("/")
    if slash:
        # A name's old and new spelling: google-bert/bert-base-cased is bert-base-cased.
        return names.get(bare) if org in _FORMER_ORGS else None
    endings = [file for key, file in names.items() if key.endswith(f"/{bare or wanted}")]
    return endings[0] if len(endings) == 1 else None


@functools.cache
def _read_shipped_config(path: Path) -> Any:
    return _read_config(path)


def _read_config(path: Path) -> Any:
    return untrusted_values.json(
        path, hint="give a whole file, or a folder with a config.json", most=_LARGEST_CONFIG
    )


def _check_config(name: str, origin: str, config: Any) -> ModelSource:
    """Validate a config and return its source; refuse one that needs repository code."""
    checked = validate(config, name)
    if "auto_map" in checked:
        raise UsageError(
            f"{name} is defined by code in its own repository, which memcalc does not run: "
            "write a callable that builds it and name it as package.module:callable."
        )
    return ModelSource(name=name, origin=origin, config=checked)


@functools.cache
def _from_hub(name: str) -> tuple[Any, str | None]:
    """Fetch a config from the hub and its commit; ``org/model@revision`` selects a revision."""
    found = re.fullmatch(r"([\w.-]+(?:/[\w.-]+)?)(?:@([\w./-]+))?", name)
    if found is None:
        raise unknown("model", name, list_bundled_files(), hint="see memcalc list models.")
    try:
        file = config_file(found[1], found[2])
    except NotOnHubError as error:
        hint = f"{error}. See memcalc list models, or give a folder with a config.json."
        raise unknown("model", name, list_bundled_files(), hint=hint) from None
    folder = file.parent
    # In the hub's cache the folder is named by the commit.
    return _read_config(file), folder.name if folder.parent.name == "snapshots" else None


_CONFIG = "config.json"


class NotOnHubError(Exception):
    """A config that the hub does not have or give; the message says why in a few words."""


def config_file(name: str, revision: str | None = None) -> Path:
    """Return the path of a model's config.json in the hub's cache; download it if it is missing.

    Raises:
        NotOnHubError: no such model, no access to it, or the hub cannot be reached.
    """
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "5")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    from huggingface_hub import errors, hf_hub_download

    try:
        offline = not is_reachable(name, revision)
        return Path(hf_hub_download(name, _CONFIG, revision=revision, local_files_only=offline))
    except errors.GatedRepoError:
        raise NotOnHubError("the model is gated: log in with hf auth login") from None
    except errors.RepositoryNotFoundError:
        raise NotOnHubError("the hub has no model of that name") from None
    except errors.RevisionNotFoundError:
        raise NotOnHubError(f"on the hub it has no revision {revision}") from None
    except errors.LocalEntryNotFoundError:
        why = "the hub cannot be reached, and the model is neither bundled nor in its cache"
        if is_offline():
            why = f"offline, and not bundled or in the hub's cache: {GO_ONLINE}"
        raise NotOnHubError(why) from None
    except errors.EntryNotFoundError:
        raise NotOnHubError(f"on the hub it has no {_CONFIG}") from None
    except errors.HFValidationError:
        raise NotOnHubError("a model on the hub is named OWNER/MODEL") from None
    except Exception as error:  # The hub's client does not catch errors of its transport.
        file = getattr(error, "filename", None)
        why = f"{file} cannot be used: {untrusted_values.reason(error)}" if file else ""
        raise NotOnHubError(why or f"the hub answered {type(error).__name__}") from None


def is_reachable(name: str, revision: str | None) -> bool:
    """Return True if the hub answers a request for a model's config.

    Raises:
        Exception: the hub refuses, such as for a gated model.
    """
    if is_offline():
        return False
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, _CONFIG, revision=revision))
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        response = getattr(error, "response", None)
        if response is None or response.status_code >= 500:
            return False
        raise
    except Exception:  # Its transport has many errors: no network, no name, no route.
        return False
    return True
