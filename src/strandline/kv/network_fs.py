"""Whether a folder is on a network file system, as far as the system tells."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

LOCAL_FUSE = frozenset(["fuseblk", "fuse.fuse-overlayfs", "fuse.lxcfs"])
"""The few that run over FUSE and keep their files on this machine. Of others nobody can tell, and most are networks."""
NETWORK_KINDS = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "gfs2",
        "glusterfs",
        "gpfs",
        "lizardfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "prl_fs",
        "pvfs2",
        "seaweedfs",
        "smb3",
        "smbfs",
        "vboxsf",
        "virtiofs",
        "vmhgfs",
        "wekafs",
    ]
)
MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(folder: Path, mounts: str | None = None) -> str | None:
    """The kind of the network file system that holds `folder`, or None if it is local or the system does not say.

    Names decide: a test of locks and shared memory passes between two processes of one machine, and says nothing of two
    machines. What runs over FUSE or from a host of this machine counts as a network unless it is known to be local.

    Args:
        folder: an absolute path.
        mounts: the text of Linux's `mountinfo`; read from the running system when None.
    """
    if mounts is None:
        try:
            mounts = MOUNTS.read_text()
        except OSError:
            return None
    best, best_kind = PurePosixPath(), ""
    for line in mounts.splitlines():
        mounted, dash, kind_and_source = line.partition(" - ")
        fields = mounted.split()
        if not dash or len(fields) < 5:
            continue
        point = PurePosixPath(fields[4].encode().decode("unicode_escape"))
        if folder.is_relative_to(point) and len(point.parts) >= len(best.parts):
            best, best_kind = point, kind_and_source.split()[0]
    is_unknown_fuse = (best_kind == "fuse" or best_kind.startswith("fuse.")) and best_kind not in LOCAL_FUSE
    return best_kind if best_kind in NETWORK_KINDS or is_unknown_fuse else None
