"""K16: do the end stages of the pipeline, which hold the embedding, need much more memory than the rest?"""

from __future__ import annotations

from collections.abc import Iterator

from monitor.run.audit.finding import Finding
from monitor.run.state import RunState

_ABOVE = 0.15  # 61 GB at the ends, 47 between them is 30 %
_GIB = 2**30


def stages(state: RunState) -> Iterator[Finding]:
    """Ranks are numbered stage by stage: tensor ranks first, then data ranks, then stages."""
    topology = state.topology
    count, world = topology.pipeline_parallel_size, topology.world_size
    if not count or count < 3 or not world or world % count or not state.memory.by_rank:
        return
    each = world // count
    most: dict[int, int] = {}
    for rank, value in state.memory.by_rank.items():
        if 0 <= rank < world:
            stage = rank // each
            most[stage] = max(value, most.get(stage, 0))
    between = [most[stage] for stage in most if 0 < stage < count - 1]
    ends = [most[stage] for stage in (0, count - 1) if stage in most]
    if len(between) < count - 2 or not ends:
        return
    end, rest = max(ends), max(between)
    if end > (1 + _ABOVE) * rest:
        yield Finding(
            "K16",
            "info",
            f"an end stage of the pipeline needs {end / _GIB:.1f} GiB, the stages between {rest / _GIB:.1f} GiB at "
            "most: the embedding is not balanced",
            evidence={"end_bytes": end, "between_bytes": rest},
        )
