"""The store and the cache, which every page is given."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from lark.explorer.cache import Cache, stamp
from lark.explorer.listing import Listing
from lark.explorer.pool_table import pool_table
from lark.explorer.tables import OpenView
from lark.explorer.views import find_view

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

    def open(self, pool: str, view_id: str) -> OpenView:
        """A view of a pool, with the pool's rows."""
        listing = self.listing()
        view = find_view(listing, pool, view_id)
        return OpenView(listing, view, pool_table(view.pool, self.cache))
