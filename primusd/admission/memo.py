"""What was worked out of a frozen value, remembered by the identity of that value.

The value is kept beside the result, so that an identity is never another's. A memo is no state:
without it everything comes out the same, later.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

ValueT = TypeVar("ValueT")
ResultT = TypeVar("ResultT")


class Memo(Generic[ValueT, ResultT]):
    """The newest results of one function of frozen values."""

    def __init__(self, weight_max: int, *, weigh: Callable[[ValueT], int] = lambda _: 1) -> None:
        """Make a memo.

        Args:
            weight_max: What is remembered may weigh so much in all.
            weigh: How much a value keeps in memory, at least 1.
        """
        self._known: OrderedDict[int, tuple[ValueT, ResultT]] = OrderedDict()
        self._weight = 0
        self._weight_max = weight_max
        self._weigh = weigh

    def get(self, value: ValueT) -> ResultT | None:
        """Return what is remembered of this very object."""
        known = self._known.get(id(value))
        return known[1] if known is not None and known[0] is value else None

    def put(self, value: ValueT, result: ResultT) -> ResultT:
        """Remember a result, and return it."""
        self.forget(value)
        self._known[id(value)] = (value, result)
        self._weight += self._weigh(value)
        while self._weight > self._weight_max:
            self._forget_oldest()
        return result

    def _forget_oldest(self) -> None:
        try:
            _, (oldest, _) = self._known.popitem(last=False)
        except KeyError:
            # Replays and checks ask from worker threads too: what they forgot first is no error.
            self._weight = 0
        else:
            self._weight -= self._weigh(oldest)

    def forget(self, value: ValueT) -> None:
        """Remember nothing of this object any more."""
        if self.get(value) is not None and self._known.pop(id(value), None) is not None:
            self._weight -= self._weigh(value)

    def of(self, value: ValueT, make: Callable[[ValueT], ResultT]) -> ResultT:
        """Return what is remembered, made now if need be; a result is never None."""
        known = self.get(value)
        return self.put(value, make(value)) if known is None else known
