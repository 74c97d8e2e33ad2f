"""The id of a topic, which its client does not ask for: a question of Kafka's protocol.

A topic that is deleted and made anew has its name and another id (KIP-516, Kafka 2.8). Source: the
schema of Metadata, version 10, in Kafka's `MetadataRequest.json` and `MetadataResponse.json`.
"""

import uuid
from collections.abc import Iterator, Sequence
from io import BytesIO
from typing import NamedTuple

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    AbstractType,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Schema,
    TaggedFields,
)

API_KEY, VERSION = 3, 10
_NO_ID = "00000000-0000-0000-0000-000000000000"
_TEXT = CompactString("utf-8")


class TopicId(NamedTuple):
    """A topic that is there."""

    name: str
    id: str


class _Uuid(AbstractType[str]):  # type: ignore[misc]  # the client's own types are untyped
    @classmethod
    def encode(cls, value: str) -> bytes:
        return uuid.UUID(value).bytes

    @classmethod
    def decode(cls, data: BytesIO) -> str:
        return str(uuid.UUID(bytes=data.read(16)))


_PARTITION = Schema(
    ("error_code", Int16),
    ("partition", Int32),
    ("leader", Int32),
    ("leader_epoch", Int32),
    ("replicas", CompactArray(Int32)),
    ("isr", CompactArray(Int32)),
    ("offline_replicas", CompactArray(Int32)),
    ("tags", TaggedFields),
)
_TOPIC = Schema(
    ("error_code", Int16),
    ("topic", _TEXT),
    ("id", _Uuid),
    ("is_internal", Boolean),
    ("partitions", CompactArray(_PARTITION)),
    ("authorized_operations", Int32),
    ("tags", TaggedFields),
)
_BROKER = Schema(
    ("node_id", Int32), ("host", _TEXT), ("port", Int32), ("rack", _TEXT), ("tags", TaggedFields)
)


class _Answer(Response):  # type: ignore[misc]  # the client's own types are untyped
    API_KEY = API_KEY
    API_VERSION = VERSION
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        ("brokers", CompactArray(_BROKER)),
        ("cluster_id", _TEXT),
        ("controller_id", Int32),
        ("topics", CompactArray(_TOPIC)),
        ("authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _Question(RequestStruct):  # type: ignore[misc]  # the client's own types are untyped
    FLEXIBLE_VERSION = True
    API_KEY = API_KEY
    API_VERSION = VERSION
    RESPONSE_TYPE = _Answer
    SCHEMA = Schema(
        ("topics", CompactArray(Schema(("id", _Uuid), ("name", _TEXT), ("tags", TaggedFields)))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicIds(Request[_Question]):  # type: ignore[misc]  # the client's own types are untyped
    """Asks for topics by name."""

    API_KEY = API_KEY

    def __init__(self, topics: Sequence[str]) -> None:
        self._topics = topics

    def build(self, request_struct_class: type[_Question]) -> _Question:
        """Return the question in the version that the broker knows."""
        named: list[tuple[str, str, dict[int, bytes]]]
        named = [(_NO_ID, topic, {}) for topic in self._topics]
        return request_struct_class(named, False, False, False, {})  # noqa: FBT003 as they stand


def topic_ids(answer: Response) -> Iterator[TopicId]:
    """Yield the topics of an answer that have an id."""
    for topic in answer.to_object()["topics"]:
        if not topic["error_code"] and topic["id"] != _NO_ID:
            yield TopicId(topic["topic"], topic["id"])
