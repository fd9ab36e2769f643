"""Sessions of agents (Claude Code, Codex), as the hub stores them: a file of events, one per line."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lark.pool.agent_layouts import SESSION
from lark.reading.rows import Row

CODEX = {"session_meta", "response_item", "event_msg", "turn_context", "compacted"}
CLAUDE = {"user", "assistant", "system", "summary", "file-history-snapshot", "queue-operation", "progress"}
"""Types of events."""


def gathered(rows: Iterable[Row]) -> Iterator[Row]:
    """The rows of a file; the events of a session as one row."""
    session: _Session | None = None
    for row in rows:
        is_event = _is_event(row.values)
        if session and not (is_event and session.may_have(row)):
            yield session.row()
            session = None
        if not is_event:
            yield row
            continue
        session = session or _Session(row.where, row.path)
        session.add(row)
    if session:
        yield session.row()


@dataclass
class _Session:
    """The events of a session so far."""

    where: str
    path: Path | None
    events: list[Mapping[str, Any]] = field(default_factory=list)
    identity: Any = None

    def may_have(self, row: Row) -> bool:
        """Whether an event may belong to this session. Not every event names its session."""
        return None in (self.identity, _session_id(row.values)) or self.identity == _session_id(row.values)

    def add(self, row: Row) -> None:
        self.events.append(row.values)
        self.identity = self.identity or _session_id(row.values)

    def row(self) -> Row:
        return Row({SESSION: self.events, "id": self.identity}, self.where, self.path)


def _is_event(values: Mapping[str, Any]) -> bool:
    kind = values.get("type")
    if not isinstance(kind, str) or "messages" in values:
        return False
    if kind in CODEX:
        return "payload" in values
    is_named = "sessionId" in values or "leafUuid" in values or "snapshot" in values
    return kind in CLAUDE and is_named


def _session_id(values: Mapping[str, Any]) -> Any:
    if values.get("type") == "session_meta" and isinstance(values["payload"], dict):
        return values["payload"].get("id")
    return values.get("sessionId")
