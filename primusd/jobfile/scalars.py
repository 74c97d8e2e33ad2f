"""What an unquoted word of a job file means: the core schema of YAML 1.2, without octals."""

import re

_INT = re.compile(r"[-+]?[0-9]+", re.ASCII)
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", re.ASCII)
_WORDS: dict[str, object] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# Longer numbers are texts that happen to have digits only.
_NUMBER_LENGTH_MAX = 40


def resolve(text: str) -> object:
    """Return what an unquoted scalar means in YAML 1.2: null, a boolean, a number or a text."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _NUMBER_LENGTH_MAX:
        return text
    if _INT.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        number = float(text)
        return number if number - number == 0 else text
    return text
