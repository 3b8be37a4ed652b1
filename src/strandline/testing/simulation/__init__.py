"""The interleaving simulator: real client code, of which one step runs at a time, in an order that a seed decides.

Every call of a key-value or blob store is a step. A seed decides who goes next, which call fails before or after its
effect or is answered late, which process dies for good, how clocks drift, and what the clients do. The same seed gives
the same history. Afterwards the oracle checks the history against `docs/guarantees.md`.

Run it with `python -m strandline.testing.simulation --seeds 1000`. It needs the package `greenlet`: switching between
greenlets costs less than a microsecond, between threads ten to fifty.

- `scheduler`: who goes next, what fails; the trace
- `stores`: the two stores, as the processes of a simulation see them
- `world`: processes with caches of their own over shared stores
- `actors`: what clients do
- `jobs`: drivers of transactions, and the real collector of garbage
- `history`: what they did, and what became of it
- `oracle`: what may have happened; `non_promises`: what may happen although one might hope not
- `collector`: a garbage collector as ruthless as the design allows
- `run`: a seed from beginning to end; `batches`: many of them
"""

from strandline.testing.simulation.run import Outcome, simulate

__all__ = ["Outcome", "simulate"]
