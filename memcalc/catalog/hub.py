"""A model's config.json from the Hugging Face hub: the config only, never weights, never code."""

from __future__ import annotations

import os
from pathlib import Path

from memcalc.files.offline import HOW, is_offline

_FILE = "config.json"


class NotOnHubError(Exception):
    """The hub has no such config for us; the message says why in a few words."""


def config_file(name: str, revision: str | None = None) -> Path:
    """Download, or find in the hub's cache, the config.json of a model.

    Args:
        name: such as ``org/model``.
        revision: a branch, a tag or a commit; ``None``: the newest.

    Raises:
        NotOnHubError: no such model, no access to it, or the hub cannot be reached.
    """
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "5")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    from huggingface_hub import errors, hf_hub_download

    try:
        offline = not is_reachable(name, revision)
        return Path(hf_hub_download(name, _FILE, revision=revision, local_files_only=offline))
    except errors.GatedRepoError:
        raise NotOnHubError("the model is gated: log in with hf auth login") from None
    except errors.RepositoryNotFoundError:
        raise NotOnHubError("the hub has no model of that name") from None
    except errors.RevisionNotFoundError:
        raise NotOnHubError(f"on the hub it has no revision {revision}") from None
    except errors.LocalEntryNotFoundError:
        why = f"{HOW} forbids asking the hub" if is_offline() else "the hub cannot be reached"
        raise NotOnHubError(f"{why}, and the model is neither bundled nor in its cache") from None
    except errors.EntryNotFoundError:
        raise NotOnHubError(f"on the hub it has no {_FILE}") from None
    except errors.HFValidationError:
        raise NotOnHubError("that is no name of the hub's form") from None
    except Exception as error:  # The hub's client lets errors of its transport through.
        raise NotOnHubError(f"the hub answered {type(error).__name__}") from None


def revision_of(file: Path) -> str | None:
    """The commit that a file in the hub's cache is of."""
    folder = file.parent
    return folder.name if folder.parent.name == "snapshots" else None


def is_reachable(name: str, revision: str | None) -> bool:
    """Whether the hub answers: one question, because a download asks for half a minute.

    Raises:
        Exception: the hub's own answer, where that is a refusal.
    """
    if is_offline():
        return False
    from huggingface_hub import errors, get_hf_file_metadata, hf_hub_url

    try:
        get_hf_file_metadata(hf_hub_url(name, _FILE, revision=revision))
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        response = getattr(error, "response", None)
        if response is None or response.status_code >= 500:
            return False
        raise
    except Exception:  # Whatever its transport calls it: no network, no name, no route.
        return False
    return True
