"""Secrets in a line's text are masked, before any rule reads it: what is shown, sent or saved of a line holds none.

Known by their names (`WANDB_API_KEY=...`, `--password ...`, an arguments dump's `hf_token ....`), by their shapes, as
their issuers publish them (`hf_...`, `AKIA...`, `Authorization: Bearer ...`), and in addresses (`https://user:...@host`).
A name that trainings use for other things too, `token`, needs a value that looks like a secret: letters and digits,
twelve at least. Law: linear, and idempotent. Of a private key over several lines the reader of the stream masks the
inner ones (`in_key`). Risk left: a secret that stands under no known name and in no known shape.

detect-secrets 1.5.0 takes 1,400 us for a line that this takes 2 us for, and finds 14 secrets in an iteration line.
"""

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
    # a private key, its lines joined or with `\\n` between them
    (
        ("private key",),
        re.compile(r"(?P<head>BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----)(?!\*)[^\n\"']{1,20000}"),
    ),
    # Cookie: a=b; c=d   Set-Cookie: id=5; Path=/
    (
        ("cookie",),
        re.compile(
            r"(?P<head>(?<![a-z])cookie[\"']?\s{0,9}[:=]\s{0,9}[\"']?)(?!\*)[^\s\"'][^\"'\n]{3,4000}", re.IGNORECASE
        ),
    ),
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
    # MASTER_KEY=..., DB_PASS: ..., MYSQL_PWD=..., SNOWFLAKE_PAT=...: variables, which are written so
    (
        ("_key=", "_key:", "_pass=", "_pass:", "_pwd=", "_pwd:", "_pat=", "_pat:"),
        re.compile(rf"(?P<head>[A-Z0-9]_(?:KEY|PASS|PWD|PAT)(?:=|:\s{{0,9}}(?!/))\\{{0,3}}[\"']?)(?!\*){_VALUE}"),
    ),
    # SECRET_B64=0123a   CI_TOKEN_2=0123a   SIGNING_KEY_V1: 0123a: what follows the word is no file's name
    (
        ("secret", "token_", "token=", "token:", "key", "pass", "pat_"),
        re.compile(
            r"(?P<head>(?<![A-Za-z0-9])(?:[A-Za-z0-9]{1,40}_){0,8}(?:SECRET|TOKEN|KEY|PASS|PAT)"
            r"(?:_(?!PATH|FILE|DIR|NAME|ID|LEN|SIZE)[A-Z0-9]{1,40}){0,4}[\"']?\s{0,9}+[=:](?!//)\s{0,9}+\\{0,3}[\"']?)"
            rf"{_LIKELY}[\w.+/=~-]{{8,500}}"
        ),
    ),
    (
        ("pass:", "pass=", "pass'", 'pass"'),
        re.compile(
            r"(?P<head>(?<![a-z0-9])(?:[a-z0-9]{1,40}_){1,8}pass[\"']?\s{0,9}+[=:]\s{0,9}+[\"']?)"
            rf"{_LIKELY}[^\s\"',;&)]{{6,500}}"
        ),
    ),
    # the password is 0123a
    (
        ("passw", "secret", "passphrase"),
        re.compile(
            r"(?P<head>(?:passw(?:or)?d|passphrase|secret) (?:is|was|are)[: ]{1,3}[\"']?)"
            rf"{_LIKELY}[^\s\"',;]{{6,500}}",
            re.IGNORECASE,
        ),
    ),
    # mysql -uroot -p0123   redis-cli -a 0123
    (
        ("mysql", "mariadb", "redis-cli"),
        re.compile(
            r"(?P<head>(?:(?:mysql|mariadb)[\w-]{0,20} (?:[^\n]{0,100}? )?-p|redis-cli (?:[^\n]{0,100}? )?-a )[\"']?)"
            r"(?![\s*-])[^\s\"']{4,500}"
        ),
    ),
    # ~/.docker/config.json: "auth": "dXNlcjpwYXNz"
    (("auth",), re.compile(r"(?P<head>[\"']auth\\{0,3}[\"']\s{0,9}:\s{0,9}\\{0,3}[\"'])[\w+/=-]{8,2000}")),
    # https://api.telegram.org/bot123456789:AAE...
    ((":aa",), re.compile(r"(?P<head>(?<![0-9])[0-9]{8,12}:)AA[\w-]{30,50}(?![\w-])")),
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
        ("key", "token"),
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
    (("sig=", "://"), re.compile(r"(?P<head>[?&](?:sig|[\w-]{0,40}signature)=)(?!\*)[^\s\"'&]{8,1000}", re.IGNORECASE)),
    (
        ("hooks",),
        re.compile(r"(?P<head>hooks\.slack\.com/\w{1,20}/|discord(?:app)?\.com/api/webhooks/)(?!\*)[\w/-]{8,300}"),
    ),
    (
        (
            "hf_", "api_org_", "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-",
            "glcbt-", "glptt-", "gldt-", "glrt-", "glsa_", "xox", "xapp-", "sk-", "k_live_", "k_test_", "whsec_", "sg.",
            "aiza", "ya29.", "gocspx-", "nvapi-", "npm_", "pypi-", "dckr_pat_", "hvs.", "gsk_", "r8_", "dapi",
            "lin_api_", "_v1_", "tskey-", "pplx-", "local-", "eyj",
        ),
        re.compile(
            r"(?P<head>(?<![A-Za-z0-9_]))(?:"
            r"(?:hf|api_org)_[A-Za-z0-9]{16,100}|(?:AKIA|ASIA)[A-Z0-9]{16}"
            r"|gh[pousr]_[A-Za-z0-9]{20,255}|github_pat_\w{20,255}|gl(?:pat|cbt|ptt|dt|rt)-[\w.-]{16,100}|glsa_\w{32,60}"
            r"|xox[abceposr][.-][\w.-]{10,250}|xapp-[\w-]{10,250}|sk-[A-Za-z0-9_-]{20,250}"
            r"|[spr]k_(?:live|test)_[A-Za-z0-9]{10,250}|whsec_[A-Za-z0-9+/=]{20,100}|SG\.[\w-]{16,40}\.[\w-]{16,80}"
            r"|AIza[\w-]{30,60}|ya29\.[\w.-]{20,2000}|GOCSPX-[\w-]{20,60}|nvapi-[\w-]{30,200}"
            r"|npm_[A-Za-z0-9]{30,100}|pypi-[\w-]{16,500}|dckr_pat_[\w-]{20,100}|hvs\.[\w-]{20,500}"
            r"|gsk_[A-Za-z0-9]{20,100}|r8_[A-Za-z0-9]{30,60}|dapi[a-f0-9]{32}(?:-[0-9])?|lin_api_[A-Za-z0-9]{20,100}"
            r"|(?:do[opr]|tgp|wandb)_v1_\w{30,200}|tskey-[\w-]{20,100}|pplx-[A-Za-z0-9]{40,80}|local-[a-f0-9]{40}"
            r"|eyJ[\w-]{8,2000}\.eyJ[\w-]{8,4000}\.[\w-]{4,2000}"
            r")(?![A-Za-z0-9])"
        ),
    ),
)  # fmt: skip


_STEMS: Final = (
    "key", "secret", "pass", "credential", "bearer", "auth", "wandb", "comet", "://", "pwd", "curl", "cookie", "mysql",
    "mariadb", "redis-cli", ":aa", "sig=", "hooks", "hf_", "akia", "asia", "gh", "gl", "xox", "xapp-", "sk-", "sk_",
    "k_live_", "k_test_", "whsec_", "sg.", "aiza", "ya29.", "gocspx-", "npm_", "pypi-", "pat", "hvs.", "r8_", "api",
    "_v1_", "pplx-", "local-", "eyj", "token_",
)  # fmt: skip
"""Each word of a pattern holds one of them: of a line the patterns of its stems are tried."""
_OF: Final = {
    stem: [row for row, (words, _) in enumerate(_PATTERNS) if any(stem in word for word in words)]
    for stem in (*_STEMS, "token")
}

_IN_KEY: Final = re.compile(rb"(?P<head>^|[\s:\]|])[A-Za-z0-9+/=]{16,100}(?=\s{0,9}$)")


def in_key(line: bytes) -> bytes:
    """A line within a private key, with the key's part masked."""
    return _IN_KEY.sub(rb"\g<head>" + MASK.encode(), line)


def masked(text: str) -> str:
    """The text with its secrets masked; the very same object where there is none."""
    lower = text.lower()
    stems = [stem for stem in _STEMS if stem in lower]  # in one pass: most lines that are read go through here
    if "token" in lower and any(word in lower for word in _TOKEN):
        stems.append("token")
    if not stems:
        return text
    found = text
    for row in sorted({row for stem in stems for row in _OF[stem]}):
        words, pattern = _PATTERNS[row]
        for word in words:
            if word in lower:
                found = pattern.sub(_masked, found)
                break
    return text if found == text else found


def _masked(match: re.Match[str]) -> str:
    return match["head"] + MASK
