"""Whether a folder is on a network file system, as far as the system tells."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

NETWORK_KINDS = frozenset(
    [
        "9p",
        "afs",
        "beegfs",
        "ceph",
        "cifs",
        "coda",
        "davfs",
        "fuse.ceph",
        "fuse.gcsfuse",
        "fuse.glusterfs",
        "fuse.goofys",
        "fuse.rclone",
        "fuse.s3fs",
        "fuse.sshfs",
        "glusterfs",
        "gpfs",
        "lustre",
        "ncpfs",
        "nfs",
        "nfs4",
        "ocfs2",
        "orangefs",
        "panfs",
        "pvfs2",
        "smb3",
        "smbfs",
    ]
)
MOUNTS = Path("/proc/self/mountinfo")


def network_file_system(folder: Path, mounts: str | None = None) -> str | None:
    """The kind of the network file system that holds `folder`, or None if it is local or the system does not say.

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
    return best_kind if best_kind in NETWORK_KINDS else None
