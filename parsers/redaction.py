"""Masks secrets in a line's text before any rule reads it, so that no shown, sent or saved text contains one.

secrets.toml has one row per pattern. Secrets are recognised by name (`WANDB_API_KEY=...`, `--password ...`, an
arguments dump's `hf_token ....`), by the shape that the issuer publishes (`hf_...`, `AKIA...`, `Authorization: Bearer
...`), and in addresses (`https://user:...@host`). The name `token` has other uses in training, so its value must look
like a secret: at least twelve letters and digits. Masking takes linear time and is idempotent. For a private key over
several lines, the stream's reader masks the inner lines (`in_key`). Known limit: a secret without a known name or
shape.

detect-secrets 1.5.0 takes 1,400 us for a line that takes 2 us here, and finds 14 secrets in an iteration line.
"""

import re
from functools import lru_cache
from typing import Final
from zlib import crc32

from ahocorasick_rs import BytesAhoCorasick

from megatron_monitor.parsers.patterns import patterned
from megatron_monitor.parsers.tables import table_in

MASK: Final = "***"


_PATTERNS: Final = tuple(
    (tuple(row["words"]), pattern)
    for row, pattern in patterned(table_in("megatron_monitor.parsers", "secrets.toml"), "secrets")
)
"""Words, pattern. A pattern is tried if the line, as printed or in lower case, contains one of its words. The group
`head` is kept.
"""
_ROWS: Final[dict[bytes, list[int]]] = {}
"""Word -> indices of its patterns."""
for _row, (_terms, _) in enumerate(_PATTERNS):
    for _word in _terms:
        _ROWS.setdefault(_word.encode(), []).append(_row)
_ROWS_OF: Final = tuple(_ROWS.values())
_TERMS: Final = BytesAhoCorasick(list(_ROWS))

_MAY_NAME: Final = re.compile("[=:@ ]|[A-Za-z0-9]{16}|(?:glpat|xox.|sk)-")
"""A file name without a match contains no secret. There may be 100,000 names."""
_MAX_PASSES: Final = 16  # maximum passes over the patterns: masking one secret may reveal the next
_IN_KEY: Final = re.compile(rb"(?P<head>^|[\s:\]|])[A-Za-z0-9+/=]{16,100}(?=\s{0,9}$)")


def in_key(line: bytes) -> bytes:
    """Return a line within a private key with the key's part masked."""
    return _IN_KEY.sub(rb"\g<head>" + MASK.encode(), line)


@lru_cache(maxsize=64)  # it is called several times in a row for one file
def masked_path(path: str) -> str:
    """Return a path, or a run's name from a path, with the secrets in its parts masked. Different paths stay
    different.
    """
    return "/".join(map(_masked_name, path.split("/"))) if _MAY_NAME.search(path) else path


@lru_cache(maxsize=512)  # many files are in the same directories
def _masked_name(name: str) -> str:
    kept = masked(name) if MASK not in name else name
    return name if kept is name else f"{kept}~{crc32(name.encode('utf-8', 'replace')) & 0xFFFF:04x}"


def masked(text: str) -> str:
    """Return the text with its secrets masked, or the same object if there are none."""
    hits = _TERMS.find_matches_as_indexes(f"{text} {text.lower()}".encode("utf-8", "replace"), overlapping=True)
    found = text
    patterns = [_PATTERNS[row][1] for row in sorted({row for index, _, _ in hits for row in _ROWS_OF[index]})]
    for _ in range(_MAX_PASSES):
        before = found
        for pattern in patterns:
            found = pattern.sub(lambda match: match["head"] + MASK, found)
        if found == before:
            break
    return text if found == text else found
