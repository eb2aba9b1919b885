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

_BETWEEN = (
    r"""["']?\s{0,9}+(?:=|:(?!//)|\.{3,200}+)\s{0,99}+\\{0,3}["']?"""  # possessive: what is masked stays as it is
)
_LIKELY = r"(?=[\w.+/=~-]{0,40}[0-9])(?=[\w.+/=~-]{0,40}[A-Za-z])"  # of a value: letters and digits
_VALUE = r"""[^\s"',;&)\]}\\]{1,500}"""

# no tokens per second
_TOKEN: Final = ("token ", "token=", "token:", "token'", 'token"', "token.", "token\\", "token,")
# (words of which a line in lower case holds one, else the pattern is not tried; what stays is the group `head`)
_PATTERNS: Final = (
    # WANDB_API_KEY=0123   'api_key': "a b"   aws_secret_access_key ...... 0123
    (
        ("key", "secret", "passw", "passphrase", "credential"),
        re.compile(
            r"(?P<head>(?:(?:api|access|secret|private|account|encryption|signing)[_-]?key(?:[_-]?id)?"
            r"|secret|passw(?:or)?d|passphrase|credentials?)"
            rf"{_BETWEEN})(?:(?<=[\"'])[^\"'\n\\]{{1,500}}(?=\\{{0,3}}[\"'])|(?!(?:None|null|True|False)\b){_VALUE})",
            re.IGNORECASE,
        ),
    ),
    # MASTER_KEY=..., DB_PASS=..., MYSQL_PWD=...: variables, which are written so
    (("_key=", "_pass=", "_pwd="), re.compile(rf"(?P<head>[A-Z0-9]_(?:KEY|PASS|PWD)=\\{{0,3}}[\"']?){_VALUE}")),
    # --wandb-api-key 0123   --password hunter2: an option's value stands behind a blank
    (
        ("-key ", "_key ", "apikey ", "secret ", "passw", "passphrase ", "token "),
        re.compile(
            r"(?P<head>(?<!\S)--?[\w-]{0,60}(?:api[_-]?key|access[_-]?key|secret|passw(?:or)?d|passphrase|token)\s{1,9}[\"']?)"
            r"(?![-*])[^\s\"',;]{6,500}",
            re.IGNORECASE,
        ),
    ),
    # '--wandb-api-key', '0123'   setenv WANDB_API_KEY 0123   \"api_key\": \"0123\"   API Key is 0123: whatever lies
    # between, if the value looks like a secret
    (
        ("api", "access", "secret", "auth"),
        re.compile(
            r"(?P<head>(?:api|access|secret|auth)[ _-]{0,2}(?:key|token)(?:[_-]?id)?(?:[^\w*\n]{1,60}(?:is )?))"
            rf"(?!\*){_LIKELY}[\w.+/=~-]{{16,500}}",
            re.IGNORECASE,
        ),
    ),
    # wandb: Appending key 0123   wandb.login(key='0123')   --wandb-key=0123
    (
        ("wandb", "comet"),
        re.compile(
            rf"(?P<head>(?:wandb|comet)[^\n]{{0,60}}?key[^\w*\n]{{1,9}}){_LIKELY}[0-9A-Za-z]{{20,100}}", re.IGNORECASE
        ),
    ),
    # "--hf-token", "0123"   token 0123
    (
        _TOKEN,
        re.compile(
            r"(?P<head>token[^\w*\n]{1,9})(?=[A-Za-z]{0,99}[0-9])(?=[0-9]{0,99}[A-Za-z])[0-9A-Za-z]{20,500}(?![\w./-])",
            re.IGNORECASE,
        ),
    ),
    # DSN: ...;pwd=0123   not the directory: PWD=/home
    (("pwd=",), re.compile(r"(?P<head>\bpwd=[\"']?)(?![/~.*$])[^\s\"',;&)]{6,500}", re.IGNORECASE)),
    (
        ("curl", "sshpass"),
        re.compile(
            r"(?P<head>curl [^\n]{0,100}?(?:-u|--user)[ =][\"']?[^\s:\"']{1,100}:|sshpass -p ?[\"']?)"
            r"(?!\*)[^\s\"']{1,500}"
        ),
    ),
    (("private key",), re.compile(r"(?P<head>BEGIN [A-Z ]{0,40}PRIVATE KEY-----)(?!\*)[^\n]{1,5000}")),
    # hf_token=0123abc...   'token': '...'
    (
        _TOKEN,
        re.compile(
            rf"(?P<head>token{_BETWEEN})(?=[^\s\"',;&]{{0,200}}[0-9])(?=[^\s\"',;&]{{0,200}}[A-Za-z])"
            r"[\w.+/=~-]{12,500}",
            re.IGNORECASE,
        ),
    ),
    (
        ("authorization", "bearer"),
        re.compile(
            r"(?P<head>\b(?:Authorization[\"']?\s{0,9}[:=]\s{0,9}[\"']?(?:Bearer|Basic|Token)|Bearer)(?:\s{1,9}|=))"
            r"(?=[^\s\"',]{0,2000}[0-9=])[\w.~+/=-]{8,2000}",
            re.IGNORECASE,
        ),
    ),
    (("wandb login",), re.compile(r"(?P<head>wandb login (?:--[\w-]{1,30} ){0,3})[0-9A-Za-z]{20,100}", re.IGNORECASE)),
    (("://",), re.compile(r"(?P<head>://[^\s/:@\"']{0,200}:)[^\s/@\"']{1,500}(?=@)")),
    (("://",), re.compile(r"(?P<head>://)(?=[A-Za-z_-]{0,200}[0-9])[\w-]{20,500}(?=@)")),
    (("sig",), re.compile(r"(?P<head>[?&](?:sig|[\w-]{0,40}signature)=)(?!\*)[^\s\"'&]{8,1000}", re.IGNORECASE)),
    (
        ("hooks.slack", "/webhooks/"),
        re.compile(r"(?P<head>hooks\.slack\.com/\w{1,20}/|discord(?:app)?\.com/api/webhooks/)(?!\*)[\w/-]{8,300}"),
    ),
    (
        ("hf_", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "xox", "sk-", "aiza",
         "eyj", "nvapi-"),
        re.compile(
            r"(?P<head>(?<![A-Za-z0-9_]))(?:"
            r"hf_[A-Za-z0-9]{16,100}|(?:AKIA|ASIA)[A-Z0-9]{16}|gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}"
            r"|glpat-[\w-]{16,100}|xox[abposr]-[\w-]{10,250}|sk-[A-Za-z0-9_-]{20,250}|AIza[\w-]{30,60}"
            r"|nvapi-[\w-]{30,200}"
            r"|eyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]{4,2000}"
            r")(?![A-Za-z0-9])"
        ),
    ),
)  # fmt: skip


_ANY: Final = (
    "key", "secret", "pass", "credential", "bearer", "authorization", "wandb login", "://", "hf_", "akia", "asia", "gh",
    "glpat-", "xox", "sk-", "aiza", "eyj", "pwd=", "curl", "nvapi-",
)  # fmt: skip
"""Of these, or of `_TOKEN`, a line holds one, else no pattern is tried."""


def masked(text: str) -> str:
    """The text with its secrets masked; the very same object where there is none."""
    lower = text.lower()
    for word in _ANY:  # a loop is twice as fast as any(), and every line that is read goes through here
        if word in lower:
            break
    else:
        if "token" not in lower or not any(word in lower for word in _TOKEN):
            return text
    found = text
    for words, pattern in _PATTERNS:
        if any(word in lower for word in words):
            found = pattern.sub(_masked, found)
    return text if found == text else found


def _masked(match: re.Match[str]) -> str:
    return match["head"] + MASK
