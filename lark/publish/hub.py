"""Upload to a hub with huggingface_hub. The token is the one that huggingface_hub finds; it is never read
or printed here.
"""

from lark.errors import LarkError, first_line
from lark.publish.bundle import Bundle


def check_name(name: str) -> None:
    """Refuse a repository name that no hub accepts, before anything is uploaded."""
    from huggingface_hub.errors import HFValidationError  # noqa: PLC0415
    from huggingface_hub.utils import validate_repo_id  # noqa: PLC0415

    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise LarkError(f"--to {name}: {first_line(error)}. Give owner/name.") from error
    require_owner(name)


def require_owner(name: str) -> None:
    # huggingface_hub accepts a name without an owner, and would upload to whoever the token belongs to.
    if name.count("/") != 1:
        raise LarkError(f"--to {name}: give the owner and the name of the repository, owner/name.")


def push(bundle: Bundle, name: str, public: bool, endpoint: str | None = None) -> str:
    """Create the repository if it does not exist and upload all files in one commit. Return its address."""
    from huggingface_hub import CommitOperationAdd, HfApi  # noqa: PLC0415

    api = HfApi(endpoint=endpoint, library_name="lark")
    operations = [
        CommitOperationAdd(path_in_repo=file.name, path_or_fileobj=str(file)) for file in bundle.files
    ]
    for result in bundle.results.files:
        operations.append(CommitOperationAdd(path_in_repo=result.name, path_or_fileobj=result.content))
    try:
        api.create_repo(name, repo_type=bundle.repo_type, private=not public, exist_ok=True)
        commit = api.create_commit(
            name, operations, repo_type=bundle.repo_type, commit_message=f"Upload {bundle.folder.name}"
        )
    except Exception as error:  # also the transport's, whose classes depend on the version of huggingface_hub
        raise LarkError(_failure(error, name, api.endpoint)) from error
    return str(commit.repo_url)


def _failure(error: Exception, name: str, endpoint: str) -> str:
    """Why an upload failed, and what to do."""
    from huggingface_hub.errors import (  # noqa: PLC0415
        HfHubHTTPError,
        LocalTokenNotFoundError,
        OfflineModeIsEnabled,
    )

    if isinstance(error, OfflineModeIsEnabled):
        return "The environment variable HF_HUB_OFFLINE forbids uploads: unset it and run the command again."
    if isinstance(error, LocalTokenNotFoundError):
        return _login(endpoint)
    if isinstance(error, HfHubHTTPError):
        status = error.response.status_code if error.response is not None else 0
        return _refused(status, name, endpoint)
    return (
        f"The upload to {endpoint} failed ({type(error).__name__}). Check the network and the address, then"
        " run the same command again."
    )


def _login(endpoint: str) -> str:
    return f"{endpoint} needs a token: run `hf auth login`, or set the environment variable HF_TOKEN."


def _refused(status: int, name: str, endpoint: str) -> str:
    if status == 401:
        return _login(endpoint)
    if status == 403:
        return (
            f"{endpoint} does not allow this token to write to {name}: use a token with write access to this"
            " owner."
        )
    if status == 404:
        return f"{endpoint} has no owner or repository {name}, or this token cannot see it."
    return (
        f"{endpoint} refused the upload to {name} (HTTP status {status}). Run the same command again later."
    )
