"""Checks the arguments of public calls against their annotations, before anything is done.

Whatever a caller passes, of any kind, the call says what it expected and has changed nothing. Types are all that is
looked at here; what a value has to be like beside that, a function says itself.
"""

from __future__ import annotations

import functools
import inspect
import math
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, NewType, TypeVar, Union, get_args, get_origin

from strandline.errors import Advice, InvalidName, UsageError

INT64_MAX = 2**63 - 1
ITEMS_CHECKED = 1_000
"""Of longer collections only this many: what stores them looks at each item again."""

OWN_RULES = frozenset(("what", "where"))
"""Parameters whose rules are about more than types: the functions check all of it, in words of their own."""

Class = TypeVar("Class", bound=type)
Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, slots=True)
class Expected:
    """What an annotation allows.

    Attributes:
        what: in words.
        fits: whether a value is such a thing.
    """

    what: str
    fits: Callable[[Any], bool]


def _is_text(value: object) -> bool:
    if type(value) is str and value.isascii():  # nearly all of them
        return True
    if not isinstance(value, str):
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False  # half of a surrogate pair: no store and no file name can hold it
    return True


def _is_whole(value: object) -> bool:
    if type(value) is int:
        return -INT64_MAX <= value <= INT64_MAX
    if isinstance(value, bool):
        return False
    return isinstance(value, Integral) and abs(int(value)) <= INT64_MAX


def _is_number(value: object) -> bool:
    if type(value) is float:
        return math.isfinite(value)
    if isinstance(value, bool):
        return False
    return _is_whole(value) or (isinstance(value, Real) and not isinstance(value, Integral) and math.isfinite(value))


_SIMPLE: dict[Any, Expected] = {
    str: Expected("a text", _is_text),
    int: Expected("a whole number", _is_whole),
    float: Expected("a number", _is_number),
    bool: Expected("True or False", lambda value: isinstance(value, bool)),
    bytes: Expected("bytes", lambda value: isinstance(value, bytes | bytearray | memoryview)),
    type(None): Expected("None", lambda value: value is None),
    datetime: Expected("a datetime", lambda value: isinstance(value, datetime)),
    date: Expected("a date", lambda value: isinstance(value, date)),
    Path: Expected("a pathlib.Path", lambda value: isinstance(value, Path)),
}
_CONTAINERS = (Iterable, Sequence, Collection, list, tuple, set, frozenset)


def expected_of(annotation: Any) -> Expected | None:
    """What an annotation allows; None if the annotation does not say, so that anything may pass."""
    if isinstance(annotation, NewType):
        return expected_of(annotation.__supertype__)
    if annotation is None:
        return _SIMPLE[type(None)]
    if annotation in _SIMPLE:
        return _SIMPLE[annotation]
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        return _any_of([expected_of(argument) for argument in arguments])
    if origin is Literal:
        # which of the values there are, the function says: it knows what each of them means
        return _any_of([expected_of(kind) for kind in dict.fromkeys(map(type, arguments))])
    if origin is os.PathLike or annotation is os.PathLike:
        return Expected("a path", lambda value: isinstance(value, os.PathLike))
    if origin is not None and (origin in _CONTAINERS or origin in (Mapping, dict)):
        return _container(origin, arguments)
    if origin is Callable or annotation is Callable:
        return Expected("a function", callable)
    # since Python 3.11 Any is a class, which nothing is an instance of
    is_class = origin is None and isinstance(annotation, type) and annotation not in (object, Any)
    if is_class and not getattr(annotation, "_is_protocol", False):
        kind = annotation
        return Expected(f"a {kind.__name__}", lambda value: isinstance(value, kind))
    return None


def _any_of(parts: Sequence[Expected | None]) -> Expected | None:
    known = [part for part in parts if part is not None]
    if len(known) < len(parts):
        return None
    words = list(dict.fromkeys(part.what for part in known))
    tests = [part.fits for part in known]

    def fits(value: Any) -> bool:
        for test in tests:  # noqa: SIM110 - `any` would make a generator for each argument of each call
            if test(value):
                return True
        return False

    return Expected(" or ".join(words), fits)


def _container(origin: Any, arguments: Sequence[Any]) -> Expected:
    if origin in (Mapping, dict):
        keys, values = [expected_of(one) for one in arguments] or [None, None]

        def maps(value: Any) -> bool:
            if not isinstance(value, Mapping):
                return False
            pairs = zip(range(ITEMS_CHECKED), value.items(), strict=False)
            return all((not keys or keys.fits(k)) and (not values or values.fits(v)) for _, (k, v) in pairs)

        inner = " of " + " to ".join(one.what if one else "anything" for one in (keys, values))
        return Expected("a map" + inner, maps)
    items = [expected_of(one) for one in arguments if one is not Ellipsis]
    item = items[0] if len(items) == 1 else None
    is_pair = origin is tuple and len(items) > 1 and Ellipsis not in arguments
    if is_pair:

        def is_tuple(value: Any) -> bool:
            fits = isinstance(value, tuple) and len(value) == len(items)
            return fits and all(one is None or one.fits(v) for one, v in zip(items, value, strict=True))

        return Expected(f"a tuple of {len(items)}", is_tuple)

    def holds(value: Any) -> bool:
        # a text is a collection of its letters to Python, and to nobody else
        if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
            return False
        if item is None or not isinstance(value, Collection):
            return True
        return all(item.fits(one) for _, one in zip(range(ITEMS_CHECKED), value, strict=False))

    return Expected("a list" + (f" of which each is {item.what}" if item else ""), holds)


class Signature:
    """What the parameters of a function expect; read from its annotations at its first call, when all is imported."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function
        self._by_name: dict[str, Expected] | None = None
        self._by_place: list[tuple[str, Expected | None]] = []
        self._rest: Expected | None = None

    def _read(self) -> dict[str, Expected]:
        inner = inspect.unwrap(self._function)
        names = vars(sys.modules[inner.__module__])
        found: dict[str, Expected] = {}
        for parameter in inspect.signature(inner).parameters.values():
            annotation = parameter.annotation
            if isinstance(annotation, str):
                try:
                    annotation = eval(annotation, names, vars(typing))
                except (NameError, TypeError):
                    annotation = Any  # known to type checkers only
            is_free = parameter.name in OWN_RULES or annotation in (Any, inspect.Parameter.empty)
            expected = None if is_free else expected_of(annotation)
            if parameter.kind is parameter.VAR_POSITIONAL:
                self._rest = expected
            elif parameter.kind is not parameter.VAR_KEYWORD:
                if parameter.kind is not parameter.KEYWORD_ONLY:
                    self._by_place.append((parameter.name, expected))
                if expected is not None:
                    found[parameter.name] = expected
        self._by_name = found
        return found

    def check(self, arguments: Sequence[Any], options: Mapping[str, Any]) -> None:
        """Raise `UsageError` for the first argument that does not fit."""
        by_name = self._by_name if self._by_name is not None else self._read()
        for (name, expected), value in zip(self._by_place, arguments, strict=False):
            if expected is not None and not expected.fits(value):
                raise _wrong(self._name(arguments), name, expected, value)
        if self._rest is not None:
            for value in arguments[len(self._by_place) :]:
                if not self._rest.fits(value):
                    raise _wrong(self._name(arguments), "an argument", self._rest, value)
        for name, value in options.items():
            option = by_name.get(name)
            if option is not None and not option.fits(value):
                raise _wrong(self._name(arguments), name, option, value)

    def _name(self, arguments: Sequence[Any]) -> str:
        """The name by which the caller knows the function: a method may stand in a class beneath the public one."""
        name = self._function.__name__
        is_method = "." in self._function.__qualname__ and arguments and hasattr(type(arguments[0]), name)
        return f"{type(arguments[0]).__name__}.{name}" if is_method else self._function.__qualname__


def _wrong(function: str, name: str, expected: Expected, value: object) -> UsageError:
    shown = repr(value) if len(repr(value)) <= 60 else f"a {type(value).__name__} of {len(repr(value)):,} characters"
    shown = shown.encode("ascii", "backslashreplace").decode() if not _is_text(shown) else shown
    kind = InvalidName if name in ("path", "name") else UsageError
    return kind(
        f"{function.rpartition('.')[2]}() expects {expected.what} for {name}, not {shown}.",
        next=Advice(f"Look at help({function}).", command="Look at the --help of the command."),
    )


def checked_call(function: Function) -> Function:
    """Check the arguments of a function before it is called."""
    signature = Signature(function)

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        signature.check(arguments, options)
        return function(*arguments, **options)

    return typing.cast("Function", call)


def checked(*, but: Collection[str] = ()) -> Callable[[Class], Class]:
    """Check the arguments of all public methods that a class defines.

    Args:
        but: methods that are called for each object and check their few arguments themselves.
    """

    def decorate(kind: Class) -> Class:
        for name, held in list(vars(kind).items()):
            if not name.startswith("_") and name not in but and inspect.isfunction(held):
                setattr(kind, name, checked_call(held))
        return kind

    return decorate
