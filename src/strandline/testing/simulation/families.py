"""Which scenarios are run by themselves: `--family jobs`."""

from __future__ import annotations

from strandline.testing.simulation import encounters, holders, jobs

FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    **jobs.FAMILIES,
    **holders.FAMILIES,
    **encounters.FAMILIES,
}
