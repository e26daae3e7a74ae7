"""How ranks are spread over the dimensions of a device mesh."""

import math

import msgspec


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A plan's ``--devices`` and ``--parallel`` as sizes of a device mesh."""

    layout: str
    """The layout that places the model; others may be inside of it."""
    axes: dict[str, int]
    """Ranks along each dimension of the device mesh by its name, outermost first."""
    experts: int = 1
    """Ranks among which the experts of a layer lie, out of those that shard and divide products."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The ranks along each dimension of the mesh, outermost first."""
        return tuple(self.axes.values())

    @property
    def world(self) -> int:
        """The number of ranks."""
        return math.prod(self.sizes)

    @property
    def inside(self) -> tuple[str, ...]:
        """The layouts (cp, tp, ep) inside pipeline stages and data parallelism."""
        found = {**self.axes, "ep": self.experts if self.experts > 1 else None}
        return tuple(name for name in ("cp", "tp", "ep") if found.get(name) is not None)

    @property
    def sharding(self) -> tuple[str, ...]:
        """The names of the mesh dimensions over which FSDP2 shards."""
        return tuple(name for name in ("dp_shard", "cp") if name in self.axes)

    @property
    def shards(self) -> int:
        """The number of ranks that share one copy of the model."""
        return self.world // self.axes.get("dp_replicate", 1)

    @property
    def stages(self) -> int:
        """The number of pipeline stages."""
        return self.axes.get("pp", 1)

    @property
    def groups(self) -> tuple[int, ...]:
        """The number of ranks in each communication group, one group per mesh dimension."""
        return tuple(size for size in (*self.sizes, self.experts) if size > 1)
