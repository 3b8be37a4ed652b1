"""What Spark is told to read: whole folders where they hold nothing else, since it looks at each single path by itself.

10,000 explicit paths take Spark six times as long to plan as the folder that they lie in. A folder may be given instead
if all that Spark would see in it is wanted. That is looked at before, and again when Spark has listed it: a task that
was declared dead may still be writing there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from strandline.core.physical import PHYSICAL_ROOT
from strandline.core.repository_core import RepositoryCore
from strandline.parallel import in_parallel
from strandline.tables.scan import TableFile

WORTH_A_LISTING = 16
"""Files of one folder from which on listing it costs less than looking at each."""
FOLDER_DEPTH = 3
"""Of the folder of one write: `data/sl_branch=…/sl_write=…`."""


def folders_and_files(core: RepositoryCore, files: Sequence[TableFile]) -> tuple[list[str], list[TableFile]]:
    """Folders that hold nothing but wanted files, and the wanted files that lie in none of them."""
    groups: dict[str, list[TableFile]] = defaultdict(list)
    for file in files:
        groups[_folder(file.info.physical_address)].append(file)
    large = [folder for folder, group in groups.items() if folder and len(group) >= WORTH_A_LISTING]

    def is_whole(folder: str) -> bool:
        return _seen_in(core, folder) == {file.info.physical_address for file in groups[folder]}

    whole = {folder for folder, is_so in zip(large, in_parallel(is_whole, large), strict=True) if is_so}
    return sorted(whole), [file for folder, group in groups.items() if folder not in whole for file in group]


def still_whole(core: RepositoryCore, folders: Sequence[str], files: Sequence[TableFile]) -> bool:
    """Whether the folders hold no other files by now. What Spark found in them before is its own list, for good."""
    wanted = {file.info.physical_address for file in files}
    return all(seen <= wanted for seen in in_parallel(lambda folder: _seen_in(core, folder), folders))


def _seen_in(core: RepositoryCore, folder: str) -> set[str]:
    """What Spark sees in a folder."""
    keys = core.resolver.namespace.list_keys(folder + "/")
    return {key for key in keys if _is_seen(key[len(folder) + 1 :])}


def _folder(address: str) -> str:
    parts = address.split("/")
    is_write = len(parts) > FOLDER_DEPTH and parts[0] == PHYSICAL_ROOT and parts[2].startswith("sl_write=")
    return "/".join(parts[:FOLDER_DEPTH]) if is_write else ""


def _is_seen(relative: str) -> bool:
    """Whether Spark sees a file below a folder that it is given."""
    *folders, name = relative.split("/")
    hidden = any(part.startswith("_") and "=" not in part for part in folders)
    return not (hidden or name.startswith(("_", ".")) or any(part.startswith(".") for part in folders))
