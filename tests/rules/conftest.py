"""The clients of one branch, as the tests of the branch machine have them."""

from tests.branch.conftest import one, shared, two

__all__ = ["one", "shared", "two"]
