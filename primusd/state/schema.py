"""The schema number that stands first in everything stored."""

from msgspec import Struct

from primusd.errors import NewerSchemaError
from primusd.records import SCHEMA


class Head(Struct, frozen=True, array_like=True):
    """The first field of every stored value, whatever follows it."""

    schema: int


def check_schema(schema: int) -> None:
    """Refuse what a newer version wrote.

    Raises:
        NewerSchemaError: Its number is higher than ours.
    """
    if schema > SCHEMA:
        raise NewerSchemaError(
            f"the store was written with schema {schema}; this primusd knows schemas to {SCHEMA}",
            hint="start the version of primusd that wrote it, or a newer one",
        )
