"""A model's config.json from the Hugging Face hub: the config only, never weights, never code."""

from __future__ import annotations

import os
from pathlib import Path


class NotOnHubError(Exception):
    """The hub has no such config for us; the message says why in a few words."""


def config_file(name: str) -> Path:
    """Download, or find in the hub's cache, the config.json of a model.

    Raises:
        NotOnHubError: no such model, no access to it, or the hub cannot be reached.
    """
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", "5")
    os.environ.setdefault("HF_HUB_DOWNLOAD_TIMEOUT", "10")
    from huggingface_hub import errors, hf_hub_download

    try:
        return Path(hf_hub_download(name, "config.json"))
    except errors.GatedRepoError:
        raise NotOnHubError("the model is gated: log in with hf auth login") from None
    except errors.RepositoryNotFoundError:
        raise NotOnHubError("the hub has no model of that name") from None
    except errors.LocalEntryNotFoundError:
        raise NotOnHubError("the hub cannot be reached and the model is not bundled") from None
    except errors.HFValidationError:
        raise NotOnHubError("that is no name of the hub's form") from None
    except Exception as error:  # The hub's client lets errors of its transport through.
        raise NotOnHubError(f"the hub answered {type(error).__name__}") from None
