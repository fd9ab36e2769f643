"""What every page is given: the store and the cache."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from lark.explorer.cache import Cache, stamp
from lark.explorer.listing import Listing
from lark.explorer.pool_table import PoolTable, pool_table
from lark.explorer.views import View, find_view

T = TypeVar("T")
CACHE_BYTES = 320 * 2**20


@dataclass(frozen=True)
class Context:
    """A store that is being looked at."""

    root: Path
    cache: Cache = field(default_factory=lambda: Cache(CACHE_BYTES))

    def listing(self) -> Listing:
        """The artifacts that exist now."""
        return Listing(self.root, self.cache)

    def cached(self, key: Hashable, files: Sequence[Path], make: Callable[[], T]) -> T:
        """A value that is valid until one of the files changes."""
        return self.cache.get(key, stamp(*files), make)

    def view(self, listing: Listing, pool: str, view: str) -> tuple[View, PoolTable]:
        """A view of a pool, and the pool's rows."""
        found = find_view(listing, pool, view)
        return found, pool_table(found.pool, self.cache)
