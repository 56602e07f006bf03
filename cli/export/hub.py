"""A repository of the Hugging Face hub, or of a server that speaks its protocol, written by the hub's own client."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from cli.client.connection import fail

NEEDS_HUB = "Uploading needs the hub's client: pip install 'mens[hub]'."


def check_installed() -> None:
    """End the command before any download if the hub's client is not installed."""
    if importlib.util.find_spec("huggingface_hub") is None:
        fail(NEEDS_HUB)


def push(folder: Path, repository: str, *, message: str, endpoint: str | None, private: bool) -> str:
    """Commit a folder's files to a repository, which is created if it does not exist; return the commit's address.

    The token is the client's: ``HF_TOKEN``, or the one that `hf auth login` has stored. Ends the command if the hub
    refuses.

    Args:
        folder: a folder that ``--format hf`` wrote.
        repository: OWNER/NAME.
        message: message of the commit.
        endpoint: endpoint of the hub; None: the client's, which is ``HF_ENDPOINT`` or the public one.
        private: whether a new repository is private; otherwise its owner's settings decide.
    """
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(endpoint=endpoint, library_name="mens")
    # One commit, where `upload_folder` may make several: a repository never holds half an adapter.
    operations = [CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
    try:
        api.create_repo(repository, private=private or None, exist_ok=True)
        commit = api.create_commit(repository, operations, commit_message=message)
    except Exception as error:  # errors of the hub's client, of its HTTP library, and of Python
        fail(f"The upload to the hub failed: {error.__cause__ or error}")
    return str(commit.commit_url)
