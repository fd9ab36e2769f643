"""Count the work lost with nodes and processes of a cluster, for the log. crew.py handles the losses."""

from dataclasses import dataclass

from lark.printing import counted


@dataclass
class Losses:
    """Time of a step's processes, and the part of it whose results do not exist."""

    spent: float = 0.0
    """Seconds that all processes together were given shards for."""
    lost: float = 0.0
    """Seconds of it that were lost. Includes the time until a loss was noticed."""
    shards: int = 0
    """Shards that were given to another process."""
    processes: int = 0

    def finished(self, seconds: float) -> None:
        """A process has done its shards."""
        self.spent += seconds

    def add(self, seconds: float, missing: int, shards: int) -> None:
        """A process was lost: `missing` of its `shards` have no result."""
        self.processes += 1
        if shards:
            self.spent += seconds
            self.lost += seconds * missing / shards
            self.shards += missing

    def __str__(self) -> str:
        several = self.processes > 1
        processes = f"{self.processes} processes" if several else f"{self.processes} process"
        pronoun = "them" if several else "it"
        share = self.lost / self.spent if self.spent else 0.0
        return (
            f"Lost {processes} of the cluster, and with {pronoun} {self.lost:.1f} s of {self.spent:.1f} s of"
            f" work ({share:.1%}), on {counted(self.shards, 'shard')} that others did again."
        )
