"""A garbage collector that is as ruthless as the promises allow, so that reusing garbage shows."""

from __future__ import annotations

from collections.abc import Iterable

from strandline.branch.rules.record import BranchRecord, RefRecord, TagRecord
from strandline.envelope import decode
from strandline.errors import StrandlineError
from strandline.ids import CommitId
from strandline.repository.repository import Repository
from strandline.results.rows import ObjectInfo
from strandline.testing.simulation.history import Operation
from strandline.testing.simulation.world import World
from strandline.tree.node_file import NodeInfo, read_metarange, read_node
from strandline.tree.store import EMPTY, METARANGES_FOLDER, NODES_FOLDER, RANGES_FOLDER, id_of

PATIENCE_TURNS = 60


def collect_garbage(world: World, repo: Repository, mine: Operation) -> int:
    """Delete the files of trees that nothing refers to.

    A file is condemned if nothing refers to it now and the operation that wrote it is over. It is deleted when all
    operations that are under way now are over too, which stands for a grace of some days; nobody looks again whether
    something refers to it by then, since nobody may begin to. No swap is under way for longer than the grace either,
    not even one of a client that died since.
    """
    lands_at = world.scheduler.last_landing
    for _ in range(PATIENCE_TURNS):
        if world.scheduler.step > lands_at:
            break
        world.scheduler.sleep(5)
    else:
        return 0
    referred = referred_files(world, repo)
    others = under_way(world) - {mine}
    condemned = [key for key in world.blobs.blobs if key.startswith((RANGES_FOLDER, NODES_FOLDER, METARANGES_FOLDER))]
    condemned = [key for key in condemned if key not in referred and world.blobs.writers.get(key) not in others]
    for _ in range(PATIENCE_TURNS):
        if not others & under_way(world):
            repo._core.stores.trees.blobs.delete_many(condemned)
            return len(condemned)
        world.scheduler.sleep(5)
    return 0


def under_way(world: World) -> set[Operation]:
    return {task.operation for task in world.scheduler.tasks if task.operation and not task.process.is_dead}


def referred_bytes(repo: Repository) -> set[str]:
    """The bytes of all objects that a branch or tag shows."""
    shown = [repo.branch(found.name) for found in repo.branches()] + [repo.ref(found.name) for found in repo.tags()]
    infos = [info for ref in shown for info in ref.list()]
    return {info.physical_address for info in infos if isinstance(info, ObjectInfo)}


def referred_files(world: World, repo: Repository, *, with_history: bool = True) -> set[str]:
    """The files of all trees that a ref, or a commit behind one, or a record in some cache refers to."""
    stores = repo._core.stores
    trees: set[str] = set()
    heads: list[CommitId] = []
    for key, value in world.kv.scan(stores.refs):
        record = decode(RefRecord, value, key.decode())
        if isinstance(record, BranchRecord):
            heads.append(record.head)
            if record.compacted:
                trees.add(record.compacted)
        elif isinstance(record, TagRecord):
            heads.append(record.commit)
    for seen in (cell._last for core in world.cores for cell in core.cells.values()):
        if seen is not None and with_history:
            heads.append(seen.branch.head)
            trees.update([seen.branch.compacted] if seen.branch.compacted else [])
    trees.update(_trees_of(world, heads, with_history))
    files: set[str] = set()
    for ref in trees - {EMPTY.ref}:
        file = f"{METARANGES_FOLDER}/{ref}.parquet"
        files.add(file)
        body = world.blobs.blobs.get(file)
        waiting = [] if body is None else list(read_metarange(body, id_of(ref)))
        while waiting:
            part = waiting.pop()
            files.add(part.address)
            if isinstance(part, NodeInfo) and (node := world.blobs.blobs.get(part.address)) is not None:
                waiting += read_node(node, part)
    return files


def _trees_of(world: World, heads: Iterable[CommitId], with_history: bool) -> set[str]:
    outside = world.outside()._core.commits
    found: dict[CommitId, str] = {}
    waiting = list(heads)
    while waiting:
        id = waiting.pop()
        if id in found:
            continue
        try:
            record = outside.get(id)
        except StrandlineError:
            continue
        found[id] = record.tree_ref
        if with_history:
            waiting.extend(record.parents)
    return set(found.values())
