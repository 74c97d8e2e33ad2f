"""The etcd of the simulator answers as a real one does, request by request."""

import random
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import anyio
import grpc.aio
import pytest

from primusd.errors import StoreUnavailableError
from primusd.state.etcd.client import EtcdClient, EtcdSettings
from primusd.state.etcd.messages import messages
from primusd.state.etcd.requests import changed_at, created_at, delete, get, put, transaction
from tests.services.etcd import Etcd
from tests.simulation.etcd_state import EtcdState, RefusedError

REQUESTS = 150
WAIT_S = 30
NAMES = (b"a", b"b", b"b!0001", b"c")


class Pair:
    """A real server and a simulated one, asked the same.

    Attributes:
        revision: Of both, each behind its own beginning.
        leases: Of each grant: the number that either gave.
    """

    def __init__(self, client: EtcdClient, prefix: bytes) -> None:
        self.revision = 0
        self.leases: list[tuple[int, int]] = []
        self._client = client
        self._prefix = prefix
        self._state = EtcdState(lambda: 0)
        self._first = 0

    def key(self, name: bytes) -> bytes:
        return self._prefix + name

    async def begin(self) -> None:
        answer = await self._client.call(
            "KV", "Range", messages()["RangeRequest"](key=self._prefix), within_s=WAIT_S
        )
        self._first = answer.header.revision

    async def ask(self, method: str, draw: "Draw") -> None:
        """Send both what is drawn, and compare what they say."""
        real = await self._real(method, draw.request(self, real=True))
        simulated = self._simulated(method, draw.request(self, real=False))
        if method == "LeaseGrant":
            self.leases.append((real.ID, simulated.ID))
        assert self._plain(real, self._first) == self._plain(simulated, 1), draw
        if not isinstance(real, str):
            self.revision = real.header.revision - self._first

    def at(self, revision: int, *, real: bool) -> int:
        """Return a revision as one of them counts."""
        return revision + (self._first if real else 1) if revision else 0

    def lease(self, number: int, *, real: bool) -> int:
        """Return a lease as one of them calls it."""
        if not self.leases:
            return 4242
        return self.leases[number % len(self.leases)][0 if real else 1]

    async def _real(self, method: str, request: Any) -> Any:
        if method == "LeaseKeepAlive":
            stream = self._client.stream("Lease", method, request, within_s=WAIT_S)
            async for answer in stream:
                await stream.aclose()
                return answer
        service = "Lease" if method.startswith("Lease") else "KV"
        try:
            return await self._client.call(service, method, request, within_s=WAIT_S)
        except StoreUnavailableError as error:
            cause = error.__cause__
            if not isinstance(cause, grpc.aio.AioRpcError):
                raise
            return f"{cause.code()}: {cause.details()}"

    def _simulated(self, method: str, request: Any) -> Any:
        try:
            return self._state.answer(method, request)
        except RefusedError as error:
            return f"{error.code}: {error.text}"

    def _plain(self, answer: Any, first: int) -> object:
        """Return an answer without what differs for other reasons."""
        if isinstance(answer, str):
            return answer
        kind = answer.DESCRIPTOR.name
        if kind == "TxnResponse":
            parts = [self._part(one, first) for one in answer.responses]
            return kind, answer.succeeded, answer.header.revision - first, parts
        if kind == "RangeResponse":
            return kind, answer.header.revision - first, self._rows(answer, first)
        if kind == "LeaseKeepAliveResponse":
            return kind, answer.TTL
        return kind, answer.header.revision - first

    def _part(self, part: Any, first: int) -> object:
        what = part.WhichOneof("response")
        if what == "response_range":
            return what, self._rows(part.response_range, first)
        if what == "response_delete_range":
            return what, part.response_delete_range.deleted
        return what

    def _rows(self, answer: Any, first: int) -> object:
        rows = [
            (
                one.key,
                one.value,
                one.version,
                one.create_revision - first,
                one.mod_revision - first,
                self._lease_of(one.lease),
            )
            for one in answer.kvs
        ]
        return rows, answer.count, answer.more

    def _lease_of(self, lease: int) -> int:
        return next((at for at, known in enumerate(self.leases) if lease in known), -1)


class Draw:
    """One request, made for either of the two."""

    def __init__(self, method: str, rnd: random.Random) -> None:
        self.method = method
        self._seed = rnd.getrandbits(32)

    def __repr__(self) -> str:
        return f"{self.method} of {self._seed}"

    def request(self, pair: Pair, *, real: bool) -> Any:
        """Return it as one of the two takes it."""
        rnd = random.Random(self._seed)
        make = {
            "Range": self._range,
            "Txn": self._transaction,
            "LeaseGrant": lambda *_: messages()["LeaseGrantRequest"](TTL=600),
            "LeaseRevoke": self._of_lease("LeaseRevokeRequest"),
            "LeaseKeepAlive": self._of_lease("LeaseKeepAliveRequest"),
        }
        return make[self.method](pair, rnd, real)

    def _of_lease(self, name: str) -> Any:
        def request(pair: Pair, rnd: random.Random, real: bool) -> Any:  # noqa: FBT001
            return messages()[name](ID=pair.lease(rnd.randrange(8), real=real))

        return request

    def _range(self, pair: Pair, rnd: random.Random, real: bool) -> Any:  # noqa: FBT001
        ranged = messages()["RangeRequest"]
        return ranged(
            key=pair.key(b""),
            range_end=pair.key(b"\xff"),
            limit=rnd.choice((0, 0, 2)),
            keys_only=rnd.random() < 0.3,
            sort_order=rnd.choice((ranged.NONE, ranged.DESCEND)),
        )

    def _transaction(self, pair: Pair, rnd: random.Random, real: bool) -> Any:  # noqa: FBT001
        first, second = rnd.sample(NAMES, 2)
        makes = rnd.choice((created_at, changed_at))
        revision = rnd.choice((0, 0, pair.revision, max(0, pair.revision - 1)))
        lease = pair.lease(rnd.randrange(8), real=real) if rnd.random() < 0.3 else 0
        operations = [
            put(pair.key(first), b"%d" % rnd.randrange(9), lease=lease),
            get(pair.key(second)),
        ]
        if rnd.random() < 0.4:
            end = rnd.choice((b"", pair.key(b"\xff"))) if second != NAMES[0] else b""
            operations = [delete(pair.key(second), end), get(pair.key(first))]
        holds: tuple[Any, ...] = (makes(pair.key(first), pair.at(revision, real=real)),)
        if rnd.random() < 0.4:
            holds = ()
        return transaction(holds, operations, (get(pair.key(first)), get(pair.key(second))))


def _draws(seed: int) -> Iterator[Draw]:
    rnd = random.Random(seed)
    methods = ("Txn",) * 8 + ("Range",) * 2 + ("LeaseGrant", "LeaseRevoke", "LeaseKeepAlive")
    for _ in range(REQUESTS):
        yield Draw(rnd.choice(methods), rnd)


@pytest.mark.parametrize("seed", range(3))
def test_both_answer_the_same(etcd: Etcd, seed: int) -> None:
    async def play() -> None:
        client = EtcdClient(EtcdSettings(etcd.endpoints, try_ms=5_000))
        with anyio.fail_after(WAIT_S):
            pair = Pair(client, f"/{uuid4().hex}/".encode())
            await pair.begin()
            for draw in _draws(seed):
                await pair.ask(draw.method, draw)
        assert pair.revision > REQUESTS / 10
        await client.close()

    anyio.run(play)
