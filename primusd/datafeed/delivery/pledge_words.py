"""What one connection of the trainer hears of its marks and asks, each once. Touch it locked."""

from collections.abc import Iterator

from primusd.datafeed.reader.pledges import Pledges


class PledgeWords:
    """What was told of one stream."""

    def __init__(self, name: str, pledges: Pledges) -> None:
        self._name = name
        self._pledges = pledges
        self._steps: set[int] = set()
        self._asks: set[int] = set()

    def expect_step(self, step: int) -> None:
        """Note that a step was marked over this connection."""
        self._steps.add(step)

    def expect_answer(self, number: int) -> None:
        """Note that something was asked for over this connection."""
        self._asks.add(number)

    def fresh(self) -> Iterator[dict[str, object]]:
        """Yield what is to be told now."""
        for step in sorted(self._steps):
            word = self._pledges.word_on(step)
            if word is None:
                continue
            self._steps.discard(step)
            name, text = word
            if name:
                yield {"op": "sealed", "stream": self._name, "step": step, "name": name}
            else:
                yield {"op": "unsealed", "stream": self._name, "step": step, "text": text}
        for number in sorted(self._asks & self._pledges.answers.keys()):
            self._asks.discard(number)
            error = self._pledges.answers[number]
            yield {"op": "answered", "stream": self._name, "id": number, "error": error}
