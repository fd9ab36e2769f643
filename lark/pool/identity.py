"""The identity of a pool: the part of the configuration and of its files that can change its trajectories."""

import os
from dataclasses import MISSING, Field, asdict, fields, replace
from typing import Any

from lark import config as conf
from lark.config import Source
from lark.errors import LarkError
from lark.pool import layouts
from lark.pool.formats import companions, find
from lark.pool.hub import is_remote
from lark.pool.mixing import naming
from lark.store.store import Checksums

READING = 3
"""Version of how the rows of files and of datasets are read. The demo, and the paper's pool, do not depend
on it.
"""


def pool_identity(pool: conf.Pool, checksums: Checksums, elsewhere: bool = False) -> dict[str, Any]:
    """The pool's part of its fingerprint. `elsewhere`: the pool need not be on this machine; it is then
    identified by its path.
    """
    if not pool.noise_share:
        pool = replace(pool, noise="none")  # without a share, there is no damage of any kind
    if pool.format != "mix":
        return source_identity(pool, checksums, elsewhere)
    part = _settings(pool)
    mixed: dict[str, Any] = {}
    for name, source in pool.mix.items():
        with naming(name):
            mixed[name] = source_identity(source, checksums, elsewhere)
    return part | {"mix": mixed}


def source_identity(source: Source, checksums: Checksums, elsewhere: bool = False) -> dict[str, Any]:
    """The part of one source."""
    return _settings(source) | _files(source, checksums, elsewhere)


def _settings(source: Source) -> dict[str, Any]:
    """The settings that are not at their default, so that a new one leaves finished pools valid."""
    defaults = {field.name: _default(field) for field in fields(source)}
    settings = {key: value for key, value in asdict(source).items() if value != defaults[key]}
    return settings | ({"reading": READING} if source.format in ("rows", "hub") else {})


def _default(setting: Field[Any]) -> Any:
    if setting.default_factory is MISSING:
        return setting.default
    return setting.default_factory()


def _files(source: Source, checksums: Checksums, elsewhere: bool) -> dict[str, Any]:
    """The checksums of the source's files, instead of their path."""
    layouts.check(source)
    if is_remote(source):
        return {}
    try:
        files = [*find(source).files, *companions(source)]
    except LarkError:
        if not elsewhere:
            raise
        files = []
    if not files:
        return {}
    root = os.path.commonpath([path.parent for path in files])
    return {"path": {path.relative_to(root).as_posix(): checksums(path) for path in files}}
