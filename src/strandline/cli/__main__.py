"""`python -m strandline.cli`: the same as the `strandline` command."""

from strandline.cli import main

main()
