"""Tokens, keys and passwords: recognise them, so that they never reach a file, a log or a tracker.

Settings are written to manifests, job files and trackers, so a setting that contains a credential is
refused. Messages of other libraries are redacted before they are shown or stored.
"""

import os
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

SECRET_VARIABLE = re.compile(
    r"(?:^|_)(?:TOKEN|API_?KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?"
    r"|ACCESS_KEY|ACCESS_KEY_ID|PRIVATE_KEY)(?:_|$)",
    re.IGNORECASE,
)
"""Names of environment variables that hold credentials: HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY."""
SHORTEST_SECRET = 8
"""Shorter values of such variables are not treated as secrets: they would be found in ordinary words."""
PATTERNS = re.compile(
    r"""\bhf_[A-Za-z0-9]{16,}                                   # Hugging Face
    |\bgh[pousr]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}|\bglpat-[\w-]{16,}
    |\b(?:AKIA|ASIA)[0-9A-Z]{16}\b                              # Amazon
    |\bsk-[A-Za-z0-9_-]{20,}|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{30,}
    |(?<=://)[^/\s:@'"]{0,200}:[^/\s@'"]{1,200}(?=@)            # user:password@host
    |(?<=://)[^/\s:@'"]{16,200}(?=@)                            # token@host
    |(?<=[?&])(?:token|access_token|api_key|apikey|sig|signature|X-Amz-Signature|X-Amz-Credential)=[^&\s'"]{6,}
    """,
    re.VERBOSE,
)
"""Credentials that are recognised by their form."""


_ADDED: set[str] = set()
"""Variables that settings name as those of credentials, whatever they are called."""


def add_variable(name: str) -> None:
    """Treat the value of an environment variable as a credential from now on."""
    _ADDED.add(name)


def redact(text: str) -> str:
    """The text with every credential replaced by a mark that names it."""
    for value, name in _secrets(_environment()):
        text = text.replace(value, f"<{name}>")
    return PATTERNS.sub("<redacted>", text)


def redact_bytes(data: bytes) -> bytes:
    """`redact` for output of a process, which need not be valid text."""
    return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


class Redactor:
    """`redact` for output that arrives in pieces. The last word of a piece is held back, because its end
    may be in the next one.
    """

    LONGEST_WORD = 1 << 16
    """Bytes of a word that are held back. A longer one is not a credential."""

    def __init__(self) -> None:
        self.held = b""

    def feed(self, piece: bytes) -> bytes:
        """The output that can be shown after this piece. Without a piece, the output has ended."""
        data = self.held + piece
        self.held = b""
        if piece and len(data) < self.LONGEST_WORD:
            self.held = re.split(rb"\s", data)[-1]
        return redact_bytes(data[: len(data) - len(self.held)])


def find(text: str) -> str | None:
    """The kind of credential that a text contains, or None."""
    for value, name in _secrets(_environment()):
        if value in text:
            return f"the value of the environment variable {name}"
    return "a token or a password" if PATTERNS.search(text) else None


def settings_with_secrets(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """The keys of settings that contain a credential, and what it is."""
    if isinstance(value, str):
        kind = find(value)
        if kind is not None:
            yield key, kind
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from settings_with_secrets(str(name), key)
            yield from settings_with_secrets(item, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from settings_with_secrets(item, key)


def secret_refused(key: str, kind: str) -> str:
    return (
        f"{key}: the setting contains {kind}. Settings are saved with the results, so remove it; libraries"
        " read credentials from environment variables such as HF_TOKEN and WANDB_API_KEY, or from their own"
        " login (`hf auth login`, `wandb login`)."
    )


def _environment() -> tuple[tuple[str, str], ...]:
    return tuple((name, value) for name, value in os.environ.items() if _is_secret(name))


def _is_secret(variable: str) -> bool:
    return variable in _ADDED or SECRET_VARIABLE.search(variable) is not None


@lru_cache(8)
def _secrets(variables: tuple[tuple[str, str], ...]) -> list[tuple[str, str]]:
    """Values of variables that hold credentials, the longest first. Paths of files are not credentials."""
    names = {value.strip(): name for name, value in variables if not _is_path(name, value)}
    pairs = [(value, name) for value, name in names.items() if len(value) >= SHORTEST_SECRET]
    return sorted(pairs, key=lambda pair: -len(pair[0]))


def _is_path(name: str, value: str) -> bool:
    """True if a variable names a file. A key may start with a slash too: those of Amazon are random
    characters of base64.
    """
    named = name.upper().endswith(("_PATH", "_FILE", "_DIR"))
    return named or (value.startswith(("/", "~", ".")) and _exists(value))


def _exists(path: str) -> bool:
    try:
        return Path(path).expanduser().exists()
    except (OSError, ValueError, RuntimeError):  # too long, a null byte, or the home of an unknown user
        return False
