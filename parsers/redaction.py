"""Secrets in a line's text are masked, before any rule reads it: what is shown, sent or saved of a line holds none.

Known by their names (`WANDB_API_KEY=...`, `--password ...`, an arguments dump's `hf_token ....`), by their shapes
(`hf_...`, `AKIA...`, `Authorization: Bearer ...`) and in addresses (`https://user:...@host`). A name that trainings use
for other things too, `token`, needs a value that looks like a secret: letters and digits, twelve at least.
Law: linear, and idempotent. Risk left: a secret that stands under no known name and in no known shape, and the inner
lines of a private key.
"""

from __future__ import annotations

import re
from typing import Final

MASK: Final = "***"

_BETWEEN = r"""["']?\s{0,9}+(?:=|:(?!//)|\.{3,200}+)\s{0,99}+["']?"""  # possessive: what is masked stays as it is
_VALUE = r"""[^\s"',;&)\]}]{1,500}"""

# (words of which a line in lower case holds one, else the pattern is not tried; what stays is the group `head`)
_PATTERNS: Final = (
    # WANDB_API_KEY=0123   'api_key': "a b"   aws_secret_access_key ...... 0123
    (
        ("key", "secret", "passw", "passphrase", "credential"),
        re.compile(
            r"(?P<head>(?:(?:api|access|secret|private|account|encryption|signing)[_-]?key(?:[_-]?id)?"
            r"|secret|passw(?:or)?d|passphrase|credentials?)"
            rf"{_BETWEEN})(?:(?<=[\"'])[^\"'\n]{{1,500}}(?=[\"'])|(?!(?:None|null|True|False)\b){_VALUE})",
            re.IGNORECASE,
        ),
    ),
    # MASTER_KEY=..., DB_PASS=..., MYSQL_PWD=...: variables, which are written so
    (("_key=", "_pass=", "_pwd="), re.compile(rf"(?P<head>[A-Z0-9]_(?:KEY|PASS|PWD)=[\"']?){_VALUE}")),
    # --wandb-api-key 0123   --password hunter2: an option's value stands behind a blank
    (
        ("-key ", "_key ", "apikey ", "secret ", "passw", "passphrase ", "token "),
        re.compile(
            r"(?P<head>(?<!\S)--?[\w-]{0,60}(?:api[_-]?key|access[_-]?key|secret|passw(?:or)?d|passphrase|token)\s{1,9})"
            r"(?![-*])[^\s\"',;]{6,500}",
            re.IGNORECASE,
        ),
    ),
    # hf_token=0123abc...   'token': '...'
    (
        ("token",),
        re.compile(
            rf"(?P<head>token{_BETWEEN})(?=[^\s\"',;&]{{0,200}}[0-9])(?=[^\s\"',;&]{{0,200}}[A-Za-z])"
            r"[\w.+/=~-]{12,500}",
            re.IGNORECASE,
        ),
    ),
    (
        ("authorization", "bearer"),
        re.compile(
            r"(?P<head>\b(?:Authorization[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?:Bearer|Basic|Token)|Bearer)\s{1,9})"
            r"(?=[^\s\"',]{0,2000}[0-9=])[\w.~+/=-]{8,2000}",
            re.IGNORECASE,
        ),
    ),
    (("wandb login",), re.compile(r"(?P<head>wandb login (?:--[\w-]{1,30} ){0,3})[0-9A-Za-z]{20,100}", re.IGNORECASE)),
    (("://",), re.compile(r"(?P<head>://[^\s/:@\"']{0,200}:)[^\s/@\"']{1,500}(?=@)")),
    (
        ("hf_", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "sk-", "aiza",
         "eyj"),
        re.compile(
            r"(?P<head>(?<![A-Za-z0-9_]))(?:"
            r"hf_[A-Za-z0-9]{16,100}|(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}"
            r"|glpat-[\w-]{16,100}|xox[abposr]-[\w-]{10,250}|sk-[A-Za-z0-9_-]{20,250}|AIza[\w-]{30,60}"
            r"|eyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]{4,2000}"
            r")(?![A-Za-z0-9])"
        ),
    ),
)  # fmt: skip


def masked(text: str) -> str:
    """The text with its secrets masked; the very same object where there is none."""
    lower = text.lower()
    if not (  # unrolled, for every line that is read goes through here
        "key" in lower or "token" in lower or "secret" in lower or "pass" in lower or "_pwd=" in lower
        or "credential" in lower or "bearer" in lower or "authorization" in lower or "wandb login" in lower
        or "://" in lower or "hf_" in lower or "akia" in lower or "asia" in lower or "gh" in lower
        or "glpat-" in lower or "xox" in lower or "sk-" in lower or "aiza" in lower or "eyj" in lower
    ):  # fmt: skip
        return text
    found = text
    for words, pattern in _PATTERNS:
        for word in words:
            if word in lower:
                found = pattern.sub(_masked, found)
                break
    return text if found == text else found


def _masked(match: re.Match[str]) -> str:
    return match["head"] + MASK
