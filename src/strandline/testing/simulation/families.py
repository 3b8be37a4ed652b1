"""Which scenarios are run by themselves: `--family jobs`."""

from __future__ import annotations

from strandline.testing.simulation import encounters, holders, jobs, one_shots, tables

FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    **jobs.FAMILIES,
    **holders.FAMILIES,
    **encounters.FAMILIES,
    **one_shots.FAMILIES,
    **tables.FAMILIES,
}
