"""Refuses a locked package whose licence does not go with Apache-2.0 in what strandline's users install."""

from __future__ import annotations

import re
import sys
from importlib.metadata import distributions

ALLOWED = re.compile(
    r"apache|\bmit\b|bsd|isc|psf|python software|mpl|mozilla|unlicense|cc0|public domain|zlib|zope|hpnd|0bsd", re.I
)
EXCEPTIONS = {
    "psycopg": "LGPL, used as a library that users may replace; an extra",
    "psycopg-binary": "LGPL, as psycopg",
    "psycopg-pool": "LGPL, as psycopg",
    "strandline": "this project",
}


def licence_of(metadata: dict[str, list[str]]) -> str:
    told = metadata["License-Expression"] + metadata["Classifier"] + [text[:200] for text in metadata["License"]]
    return " | ".join(text for text in told if text)


def main() -> int:
    bad = []
    for found in distributions():
        name = (found.metadata["Name"] or "").lower()
        fields = {key: found.metadata.get_all(key) or [] for key in ("License-Expression", "License", "Classifier")}
        fields["Classifier"] = [text for text in fields["Classifier"] if text.startswith("License ::")]
        told = licence_of(fields)
        if name not in EXCEPTIONS and not ALLOWED.search(told):
            bad.append(f"{name}: {told or 'says nothing'}")
    print("\n".join(f"licence not on the list: {line}" for line in bad) or "licences: all on the list")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
