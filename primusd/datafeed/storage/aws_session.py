"""Whether S3 is shown the credentials of a session, and when that ends, where somebody wrote it.

As the tools of AWS: the environment, else a profile of the shared credentials file. What an
instance or a web identity gives out is renewed by the client itself.
"""

import configparser
import os
from datetime import UTC, datetime
from pathlib import Path

from primusd.datafeed.protocol import Credential
from primusd.datafeed.storage.credentials import REREAD, RESTART

EXPIRY_KEYS = (
    "aws_credential_expiration",
    "aws_expiration",
    "expiration",
    "x_security_token_expires",
)
"""Under which tools that make sessions write when they end."""


def aws_session() -> Credential | None:
    """Return the session that is shown; None: lasting keys, or those of the instance."""
    if os.environ.get("AWS_ACCESS_KEY_ID"):
        if not os.environ.get("AWS_SESSION_TOKEN"):
            return None
        ends = _ms(os.environ.get("AWS_CREDENTIAL_EXPIRATION", ""))
        name = "the AWS session in $AWS_SESSION_TOKEN"
        remedy = f"{RESTART}, or a profile of the shared credentials file be used"
        return Credential(name, 0, ends, remedy)
    profile = os.environ.get("AWS_PROFILE", "") or "default"
    path = Path(os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "") or "~/.aws/credentials")
    found = configparser.RawConfigParser()
    try:
        found.read(path.expanduser(), encoding="utf-8")
    except (OSError, RuntimeError, configparser.Error, UnicodeDecodeError):
        return None
    said = found[profile] if found.has_section(profile) else {}
    if not said.get("aws_session_token"):
        return None
    ends = next((_ms(said[key]) for key in EXPIRY_KEYS if said.get(key)), 0)
    return Credential(f"the AWS session of profile {profile} in {path}", 0, ends, REREAD)


def _ms(text: str) -> int:
    """Return a time in milliseconds since the Unix epoch, 0 where it cannot be read."""
    try:
        found = datetime.fromisoformat(text.strip())
    except ValueError:
        return 0
    return int(found.replace(tzinfo=found.tzinfo or UTC).timestamp() * 1000)
