"""What every interface does with a request that is understood: the loop, threads, lanes, and errors as answers."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from strandline.errors import BranchGone, RepositoryNotFound, StrandlineError
from strandline.iam.policy import Needs
from strandline.operations import warning
from strandline.repository.branch import Branch
from strandline.server.lanes import Write
from strandline.server.messages import Exchange, Request, Response
from strandline.server.observing import under
from strandline.server.operation import AnyCall, Cost, HandOver, Staging
from strandline.server.pool import Pool
from strandline.server.services import Services
from strandline.tree.store import FromMemory, NotInMemory

_FROM_MEMORY = FromMemory()
MEMORY_MAX_BYTES = 1 << 20
"""A body of content up to this size is kept in memory until it is complete; a larger one is read as it comes."""


class Row(Protocol):
    """What the tables of all interfaces say of an operation."""

    @property
    def id(self) -> str: ...
    @property
    def needs(self) -> Needs | None: ...
    @property
    def cost(self) -> Cost: ...
    @property
    def handler(self) -> Callable[[Any], Response | Staging]: ...


RowT = TypeVar("RowT", bound=Row)
CallT = TypeVar("CallT", bound=AnyCall)


class Answering(ABC):
    """Answers requests, with an error if a step of one fails. Its methods run in the event loop."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def begin(self, exchange: Exchange) -> None:
        """Take a request whose head is there."""
        self._guarded(exchange, lambda: self._begin(exchange))

    def refuse(self, exchange: Exchange, error: StrandlineError) -> None:
        """Answer with an error."""
        exchange.reply(self._refusal(error, exchange.request))

    @abstractmethod
    def _begin(self, exchange: Exchange) -> None: ...

    @abstractmethod
    def _refusal(self, error: StrandlineError, request: Request) -> Response: ...

    @abstractmethod
    def _fault(self, request: Request) -> Response: ...

    def _guarded(self, exchange: Exchange, step: Callable[[], None]) -> None:
        try:
            step()
        except Exception as error:
            self._failed(exchange, error)

    def _failed(self, exchange: Exchange, error: BaseException) -> None:
        if isinstance(error, StrandlineError):
            self.refuse(exchange, error)
        else:
            warning("request %s (%s) failed: %r", exchange.request.id, exchange.operation, error)
            exchange.reply(self._fault(exchange.request))

    def _later(
        self, exchange: Exchange, pool: Pool, work: Callable[[], Any], then: Callable[[Any], None], owner: str = ""
    ) -> None:
        """Do something in a thread, and go on with what it returns; its errors are answers."""

        def done(result: Any, error: BaseException | None) -> None:
            if error is not None:
                self._failed(exchange, error)
            else:
                self._guarded(exchange, lambda: then(result))

        pool.run(work, done, owner)


class Face(Answering, Generic[RowT, CallT]):
    """An interface with a table of operations."""

    @abstractmethod
    def _judge(self, operation: RowT, call: CallT) -> None:
        """Read anew, in a thread, what the caller may do; raises unless it may still do what it asked for."""

    def _reply(self, exchange: Exchange, operation: RowT, response: Response) -> None:
        exchange.reply(response)

    def _remember_how_to_judge(self, operation: RowT, call: CallT) -> None:
        def still() -> None:
            if not self._services.verifier.holds(call.principal):
                self._judge(operation, call)

        call.still = still

    def _passing_over(self, exchange: Exchange, operation: RowT, call: CallT) -> None:
        """Run an operation without a body. What came though nobody asked for it is read: the next request follows."""
        if exchange.request.content_length == 0:
            self._run(exchange, operation, call, is_small=True)
        else:
            exchange.collect(
                MEMORY_MAX_BYTES,
                lambda _: self._guarded(exchange, lambda: self._run(exchange, operation, call, is_small=True)),
            )

    def _run(self, exchange: Exchange, operation: RowT, call: CallT, *, is_small: bool) -> None:
        services, headers = self._services, call.request.headers
        if operation.cost == "quick":
            is_here = services.reads_at_once(call.repository)
        elif operation.cost == "upload":
            # what depends on what is there reads and swaps, and waits for others
            is_plain = b"if-match" not in headers and b"if-none-match" not in headers
            is_here = is_small and is_plain and services.puts_at_once(call.repository)
        else:
            is_here = False
        if is_here and (operation.needs is None or services.verifier.holds(call.principal)):
            call.is_in_loop = True
            try:
                with _FROM_MEMORY:
                    result = _called(operation, call)
            except (HandOver, NotInMemory):  # a thread begins anew: nothing has happened yet
                call.is_in_loop = False
            else:
                self._finish(exchange, operation, call, result)
                return
        self._in_thread(exchange, operation, call, services.bodies if operation.cost == "long" else services.work)

    def _in_thread(self, exchange: Exchange, operation: RowT, call: CallT, pool: Pool) -> None:
        def work() -> Response | Staging:
            call.still()  # the body may have taken long, and so may the wait for a thread
            return _called(operation, call)

        def done(result: Any, error: BaseException | None) -> None:
            wait_s = 0.0 if error is None else self._worth_waiting_s(operation, call, error)
            if wait_s:
                asyncio.get_running_loop().call_later(wait_s, run)
            elif error is not None:
                self._failed(exchange, error)
            else:
                self._guarded(exchange, lambda: self._finish(exchange, operation, call, result))

        def run() -> None:
            self._guarded(exchange, lambda: pool.run(work, done, call.principal_name))

        run()

    def _worth_waiting_s(self, operation: RowT, call: CallT, error: BaseException) -> float:
        """After how many seconds a call that failed is worth another try, in which no thread waits; 0 for never."""
        return 0.0

    def _early(self, exchange: Exchange, call: CallT, check: Callable[[], None], then: Callable[[], None]) -> None:
        """Go on with the body of a request after what can refuse it is known: a client may wait for that to send it."""
        if self._services.reads_at_once(call.repository):
            check()
            then()
        else:
            self._later(exchange, self._services.work, check, lambda _: then())

    def _finish(self, exchange: Exchange, operation: RowT, call: CallT, result: Response | Staging) -> None:
        if isinstance(result, Response):
            self._reply(exchange, operation, result)
            return
        services = self._services

        def holds() -> bool:
            return services.verifier.holds(call.principal)

        def again() -> None:  # somebody's permissions changed, or it is time to read them anew
            def stage_anew(_: None) -> None:
                self._finish(exchange, operation, call, result)

            self._guarded(
                exchange,
                lambda: self._later(exchange, services.knowing, lambda: self._judge(operation, call), stage_anew),
            )

        def done(error: BaseException | None) -> None:
            if error is None:
                self._guarded(exchange, lambda: exchange.reply(result.answer()))
                return
            if isinstance(error, BranchGone):
                services.forget()
                if not result.is_again:  # the name may be another branch's by now, which is the one that is meant
                    self._guarded(exchange, lambda: self._later(exchange, services.work, meant, stage_there))
                    return
            self._failed(exchange, error)

        def meant() -> Branch:
            found = services.branch(call.repository, result.branch.name)
            return found.forced if result.branch._is_forced else found

        def stage_there(branch: Branch) -> None:
            self._finish(exchange, operation, call, replace(result, branch=branch, is_again=True))

        services.lanes.stage(result.branch, Write(result.path, result.entry, holds, again, done))


def _called(operation: Row, call: AnyCall) -> Response | Staging:
    """Call a handler. A handle that was kept may be of a branch or a repository that has gone: then once more."""
    with under(operation.id, call.request.id):
        try:
            return operation.handler(call)
        except (BranchGone, RepositoryNotFound):
            call.services.forget(call.repository)
            if call.was_read:
                raise
            return operation.handler(call)
