"""YAML into a syntax tree, by the rules of YAML 1.2: `no` is a text, `010` is ten."""

import re
from collections.abc import Callable

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.events import (
    AliasEvent,
    DocumentStartEvent,
    MappingEndEvent,
    MappingStartEvent,
    ScalarEvent,
    SequenceEndEvent,
    SequenceStartEvent,
)

from primusd.errors import MalformedError, TooLargeError
from primusd.jobfile.document import DEPTH_MAX, VALUES_MAX, Entry, Node, show_value
from primusd.jobfile.scalars import resolve

_SURROGATES = re.compile("[\ud800-\udbff][\udc00-\udfff]")


def read_yaml(text: str, filename: str, substitute: Callable[[str], str]) -> Node:
    """Return the syntax tree of a YAML text.

    Args:
        text: One document.
        filename: For messages.
        substitute: What is done to each scalar before its type is told.

    Raises:
        MalformedError: It is not YAML, or uses tags, several documents, or endless aliases.
        TooLargeError: It holds more values than a job file can need.
    """
    builder = _Builder(filename, substitute)
    try:
        for event in YAML(typ="safe", pure=True).parse(text):
            builder.take(event)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{filename}:{mark.line + 1}:{mark.column + 1}" if mark else filename
        what = " ".join(str(error.problem or error.context or "cannot be read").split())
        raise MalformedError(f"{where} is not YAML: {what}") from error
    except (YAMLError, ValueError) as error:
        what = " ".join(str(error).split())
        raise MalformedError(f"{filename} is not YAML: {what}") from error
    return builder.result()


def _joined(text: str) -> str:
    """Return the text with halves of characters joined, as JSON writes those beyond 0xffff."""
    return _SURROGATES.sub(
        lambda pair: pair[0].encode("utf-16", "surrogatepass").decode("utf-16"), text
    )


class _Open:
    """A list or a mapping whose end has not come yet."""

    def __init__(self, line: int, column: int, anchor: str | None, *, is_mapping: bool) -> None:
        self.line = line
        self.column = column
        self.anchor = anchor
        self.is_mapping = is_mapping
        self.nodes: list[Node] = []
        self.entries: list[Entry] = []
        self.key: tuple[str, int, int] | None = None


class _Builder:
    """Makes a tree of the events of a parser; the stack is its own, not Python's."""

    def __init__(self, filename: str, substitute: Callable[[str], str]) -> None:
        self.filename = filename
        self.substitute = substitute
        self.open: list[_Open] = []
        self.anchors: dict[str, Node] = {}
        self.root: Node | None = None
        self.documents = 0
        self.count = 0

    def result(self) -> Node:
        """Return the tree, a null where the text had no value."""
        return self.root or Node(None)

    def take(self, event: object) -> None:
        """Take the next event of the parser."""
        match event:
            case DocumentStartEvent():
                self.documents += 1
                if self.documents > 1:
                    raise self._refused(event, "is a second document; one file is one job")
            case ScalarEvent():
                self._scalar(event)
            case AliasEvent():
                self._alias(event)
            case SequenceStartEvent() | MappingStartEvent():
                self._start(event, is_mapping=isinstance(event, MappingStartEvent))
            case SequenceEndEvent() | MappingEndEvent():
                self._end()
            case _:
                pass

    def _start(self, event: SequenceStartEvent | MappingStartEvent, *, is_mapping: bool) -> None:
        if event.tag is not None:
            raise self._refused(
                event, f"has a tag {show_value(str(event.tag))}; job files use none"
            )
        if self.open and self.open[-1].is_mapping and self.open[-1].key is None:
            raise self._refused(event, "is a list or a mapping where a key must stand")
        if len(self.open) >= DEPTH_MAX:
            raise self._refused(event, f"is nested deeper than {DEPTH_MAX} levels")
        mark = event.start_mark
        self.open.append(_Open(mark.line + 1, mark.column + 1, event.anchor, is_mapping=is_mapping))

    def _end(self) -> None:
        done = self.open.pop()
        if done.is_mapping:
            node = Node(None, done.line, done.column, entries=tuple(done.entries))
        else:
            node = Node(None, done.line, done.column, items=tuple(done.nodes))
        self._place(node, done.anchor)

    def _scalar(self, event: ScalarEvent) -> None:
        if event.tag is not None:
            raise self._refused(
                event, f"has a tag {show_value(str(event.tag))}; job files use none"
            )
        line, column = event.start_mark.line + 1, event.start_mark.column + 1
        top = self.open[-1] if self.open else None
        if top is not None and top.is_mapping and top.key is None:
            top.key = (_joined(event.value), line, column)
            return
        text = self.substitute(_joined(event.value))
        is_plain = event.style is None or event.style == ""
        self._place(Node(resolve(text) if is_plain else text, line, column), event.anchor)

    def _alias(self, event: AliasEvent) -> None:
        node = self.anchors.get(event.anchor)
        if node is None:
            name = show_value(event.anchor)
            raise self._refused(event, f"refers to {name}, which is not complete before it")
        if self.open and self.open[-1].is_mapping and self.open[-1].key is None:
            raise self._refused(event, "is an alias where a key must stand")
        self._place(node, None)

    def _place(self, node: Node, anchor: str | None) -> None:
        self.count += 1
        if self.count > VALUES_MAX:
            raise TooLargeError(
                f"{self.filename} holds more than {VALUES_MAX} values; a job file is small"
            )
        if anchor:
            self.anchors[anchor] = node
        if not self.open:
            self.root = node
            return
        top = self.open[-1]
        if top.is_mapping and top.key is not None:
            key, line, column = top.key
            top.entries.append(Entry(key, node, line, column))
            top.key = None
        else:
            top.nodes.append(node)

    def _refused(self, event: object, why: str) -> MalformedError:
        mark = getattr(event, "start_mark", None)
        where = f"{self.filename}:{mark.line + 1}:{mark.column + 1}" if mark else self.filename
        return MalformedError(f"{where} {why}")
