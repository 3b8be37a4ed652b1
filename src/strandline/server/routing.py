"""From a method and a path to a row of the table: a walk through its segments."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, Protocol, TypeVar
from urllib.parse import unquote


class Routed(Protocol):
    """What an operation says of its address."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...


RoutedT = TypeVar("RoutedT", bound=Routed)


class _Node(Generic[RoutedT]):
    __slots__ = ("by_method", "named", "parameter")

    def __init__(self) -> None:
        self.named: dict[str, _Node[RoutedT]] = {}
        self.parameter: _Node[RoutedT] | None = None
        self.by_method: dict[str, tuple[RoutedT, list[str]]] = {}


class Router(Generic[RoutedT]):
    """Finds operations."""

    def __init__(self, operations: Iterable[RoutedT]) -> None:
        self._root: _Node[RoutedT] = _Node()
        for operation in operations:
            node, names = self._root, []
            for segment in operation.path.strip("/").split("/"):
                if segment.startswith("{"):
                    names.append(segment[1:-1])
                    node.parameter = node.parameter or _Node()
                    node = node.parameter
                else:
                    node = node.named.setdefault(segment, _Node())
            if operation.method in node.by_method:
                raise ValueError(f"{operation.method} {operation.path} is there twice")
            node.by_method[operation.method] = operation, names

    def find(self, method: str, raw_path: str) -> tuple[RoutedT | None, dict[str, str], list[str]]:
        """The operation, its parameters, and the methods that the path has.

        Args:
            raw_path: percent-encoded, so that an encoded slash is a part of a name.
        """
        node = self._root
        values = []
        for segment in raw_path.split("/"):
            below = node.named.get(segment)
            if below is None:
                below = node.parameter
                if below is None or not segment:
                    return None, {}, []
                values.append(unquote(segment, errors="strict") if "%" in segment else segment)
            node = below
        found = node.by_method.get(method)
        if found is None:
            return None, {}, sorted(node.by_method)
        operation, names = found
        return operation, dict(zip(names, values, strict=True)), []
