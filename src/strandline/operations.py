"""What users asked for, as it is logged and traced: one logger, "strandline", and OpenTelemetry spans.

An operation has an id that stands in each of its lines, also in those of what it calls. Single reads and writes are no
operations: they are counted by `metrics`. Names of places are logged, contents and URLs with secrets never are.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ParamSpec, Protocol, TypeVar

from strandline.redaction import redacted

logger = logging.getLogger("strandline")
logger.addHandler(logging.NullHandler())  # a program that did not ask for logs gets none on standard error
ID_CHARS = 8
_current: ContextVar[str] = ContextVar("strandline_operation", default="")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class Placed(Protocol):
    """Something that knows where it is, such as a branch."""

    @property
    def place(self) -> str: ...


def debug(message: str, *arguments: object) -> None:
    """A line of the operation that is under way."""
    if logger.isEnabledFor(logging.DEBUG):
        logger.debug("%s " + message, _current.get() or "-" * ID_CHARS, *map(_shown, arguments))


def warning(message: str, *arguments: object) -> None:
    logger.warning("%s " + message, _current.get() or "-" * ID_CHARS, *map(_shown, arguments))


def _shown(argument: object) -> object:
    return argument if isinstance(argument, int | float) else redacted(str(argument))


@contextmanager
def operation(verb: str, place: str) -> Iterator[None]:
    """Log the beginning, the end, and an error of an operation, and make a span of it.

    Args:
        place: what it is done to, such as repository/branch.
    """
    place = redacted(place)
    has_tracer = "opentelemetry" in sys.modules  # who did not import it has no provider that would take spans
    outer = _current.get()
    own = os.urandom(ID_CHARS // 2).hex()
    id = f"{outer}/{own}" if outer else own
    token = _current.set(id)
    started = time.monotonic()
    logger.debug("%s %s %s begins", id, verb, place)
    try:
        with _span(verb, place, id) if has_tracer else _nothing():
            yield
    except BaseException as error:
        # what is expected, such as a conflict, is the caller's to judge
        logger.info("%s %s %s ends with %s after %.3f s", id, verb, place, _kind(error), time.monotonic() - started)
        raise
    else:
        logger.info("%s %s %s is done in %.3f s", id, verb, place, time.monotonic() - started)
    finally:
        _current.reset(token)


@contextmanager
def named(id: str) -> Iterator[None]:
    """Let the lines of all that is done within it begin with an id, such as that of a request."""
    token = _current.set(id)
    try:
        yield
    finally:
        _current.reset(token)


def _kind(error: BaseException) -> str:
    return str(getattr(error, "kind", None) or type(error).__name__)


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _span(verb: str, place: str, id: str) -> Iterator[None]:
    from opentelemetry import trace  # noqa: PLC0415 - an optional package

    tracer = trace.get_tracer("strandline")
    with tracer.start_as_current_span(
        f"strandline {verb}", record_exception=False, set_status_on_exception=False
    ) as span:
        span.set_attribute("strandline.place", place)
        span.set_attribute("strandline.operation", id)
        try:
            yield
        except BaseException as error:
            span.set_attribute("error.type", _kind(error))
            span.set_status(trace.Status(trace.StatusCode.ERROR))
            raise


def logged(verb: str) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Make an operation of a method of something that is `Placed`."""

    def decorate(method: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        @functools.wraps(method)
        def call(*arguments: Any, **options: Any) -> Result:
            with operation(verb, arguments[0].place):
                return method(*arguments, **options)

        return call

    return decorate
