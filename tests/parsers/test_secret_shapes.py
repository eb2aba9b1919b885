"""200 secrets, in the forms in which their issuers write them: none in what the monitor shows, sends, saves or logs."""

import base64
import json
import random
import string
from collections.abc import Iterator

import msgspec
import pytest

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp, Data, Gone, Opened, source_id
from megatron_monitor.notifiers import payload
from megatron_monitor.parsers.reader import Bookmark, SourceReader
from megatron_monitor.parsers.redaction import in_key, masked
from megatron_monitor.prometheus_text import TextFormat
from tests.lines import line
from tests.plain import encode

_MARK = "5ecreT9"
"""Stands in each secret; issuers take other characters each."""
_ALNUM, _HEX = string.ascii_letters + string.digits, "0123456789abcdef"


def _made(random_: random.Random, form: str) -> str:
    """`a40`: 40 letters and digits, `h32`: hexadecimal; each with the mark, or what of it the form allows."""
    kind, size = form[0], int(form[1:])
    mark = _MARK if kind == "a" else "5ec4e79"
    rest = "".join(random_.choice(_ALNUM if kind == "a" else _HEX) for _ in range(size - len(mark)))
    return mark + rest


_SHAPES = [
    "ghp_{a36}", "gho_{a36}", "ghu_{a36}", "ghs_{a36}", "ghr_{a36}", "github_pat_{a22}_{a59}", "glpat-{a20}",
    "glcbt-64_{a20}", "gldt-{a20}", "glrt-{a20}", "glptt-{h40}", "hf_{a34}", "api_org_{a34}", "sk-{a48}",
    "sk-proj-{a40}-{a40}", "sk-svcacct-{a40}", "sk-ant-api03-{a93}-AA", "sk-or-v1-{h64}", "xoxb-1234567890-{a24}",
    "xoxp-1234567890-{a24}", "xoxe.xoxp-1-{a60}", "xapp-1-A0123-123-{h64}", "npm_{a36}", "pypi-AgEIcHlwaS5vcmc{a80}",
    "dckr_pat_{a27}", "sk_live_{a24}", "rk_live_{a24}", "sk_test_{a24}", "whsec_{a32}", "SG.{a22}.{a43}", "hvs.{a90}",
    "gsk_{a52}", "r8_{a37}", "dapi{h32}", "dapi{h32}-2", "lin_api_{a40}", "dop_v1_{h64}", "ya29.{a100}",
    "GOCSPX-{a28}", "AIza{a35}", "nvapi-{a64}", "glsa_{a32}_{h8}", "tskey-auth-{a17}-{a30}", "pplx-{a48}",
    "local-{h40}", "wandb_v1_{a60}", "123456789:AA{a33}", "eyJhbGciOiJ{a20}.eyJzdWIi{a40}.{a43}",
]  # fmt: skip
_NAMED = [
    "WANDB_API_KEY={h40}", "export HF_TOKEN={a24}", "environ({{'PATH': '/bin', 'HF_TOKEN': '{a24}'}})",
    "cmd = pdsh -w h1 export NCCL_DEBUG=INFO; export HF_TOKEN={a24}; cd /x", "  huggingface_access_key ........ {a24}",
    "wandb_api_key: {h40}", "'--wandb-api-key', '{h40}'", "wandb login {h40}",
    "wandb: Appending key {h40} to your netrc file", "SECRET_B64={a24}", "SNOWFLAKE_PAT: {a40}", "SNOWFLAKE_PAT={a40}",
    "CI_TOKEN_2={a24}", "DEPLOY_TOKEN={a24}", "DB_PASS={a12}", "DB_PASS: {a12}", "db_pass: {a12}", "SSH_PASS='{a12}'",
    "MYSQL_PWD={a12}", "MASTER_KEY={a24}", "SIGNING_KEY_V1={a24}", "SESSION_COOKIE={a24}", "CLIENT_SECRET={a24}",
    "client_secret: {a24}", "AZURE_CLIENT_SECRET={a34}", "AccountKey={a86}==", "SharedAccessKey={a43}=",
    "aws_secret_access_key = {a40}", "AWS_SESSION_TOKEN={a100}", "https://x.blob.core.windows.net/c?sv=1&sig={a44}%3D&se=1",
    "SharedAccessSignature sr=x&sig={a44}%3D&se=1", "https://me:{a16}@git.example/x", "https://{a40}@git.example/x",
    "redis://:{a16}@cache:6379/0", "mongodb+srv://me:{a16}@c.example/x", "Authorization: Bearer {a40}",
    "Authorization: Basic {a24}=", "Authorization: token {a40}", "-H 'Authorization: Bearer {a40}'",
    "Cookie: session={a40}", "Set-Cookie: id={a40}; Path=/", "cookie: a=b; sid={a40}", "the password is {a12}",
    "password: {a12}", "--password {a12}", "mysql -uroot -p{a12} -h db", "redis-cli -a {a12} ping",
    "sshpass -p {a12} ssh x", "curl -u me:{a16} https://x", '"auth": "{a40}"', '"identitytoken": "{a40}"',
    '"private_key_id": "{h40}"',
    '"private_key": "-----BEGIN PRIVATE KEY-----\\n{a64}\\n{a64}\\n-----END PRIVATE KEY-----\\n"',
    "-----BEGIN RSA PRIVATE KEY----- {a64}", "https://hooks.slack.com/services/T0/B0/{a24}",
    "https://discord.com/api/webhooks/123/{a68}", "https://api.telegram.org/bot123456789:AA{a33}/getMe",
]  # fmt: skip


def _secrets() -> Iterator[tuple[str, str]]:
    """Shapes alone and as people write them around; of names each form."""
    random_ = random.Random(7)

    def filled(form: str) -> str:
        while "{a" in form or "{h" in form:
            begin = min(place for place in (form.find("{a"), form.find("{h")) if place >= 0)
            end = form.index("}", begin)
            form = form[:begin] + _made(random_, form[begin + 1 : end]) + form[end + 1 :]
        return form

    for form in _SHAPES:
        for around in ("{}", "value '{}' is wrong", "X={}", '{{"x": "{}"}}'):
            yield form, around.format(filled(form))
    for form in _NAMED:
        yield form, filled(form)


SECRETS = list(_secrets())


def _leaks(text: str) -> bool:
    return _MARK.lower() in text.lower() or "5ec4e79" in text


def test_each_is_masked() -> None:
    """By itself, and masking twice is masking once."""
    assert len(SECRETS) >= 200
    assert [text for _, text in SECRETS if _leaks(masked(text)) or masked(masked(text)) != masked(text)] == []


@pytest.mark.parametrize(
    "text",
    [
        "git 0123456789abcdef0123456789abcdef01234567", "tokens/s: 12345.6", "num_tokens=1048576",
        "NUM_TOKENS=123456789",
        "TOKENIZERS_PARALLELISM=false", "MAX_TOKEN_LEN=4096", "EOS_TOKEN_ID=151643", "SSH_KEY_PATH=/home/me/id_rsa1234",
        "PATH=/usr/local/bin:/usr/bin1", "the password is required", "forward pass: 12.3 ms", "pass_rate: 0.91",
        "local-rank 3 of local-world 8", "npm_config_cache=/tmp/x", "sk-learn 1.2", "author: somebody", "r8_model",
        "msg.append", "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
        "data_v1_text_document",
        "mysql -h db -P 3306", "10:aa:bb:cc:dd:ee", "Cookies are off", "public_key_size: 2048", "query_key_value: 12",
        "BEGIN PUBLIC KEY", "dapi is down", "global batch size: 1024", "hidden_size_per_attention_head ... 128",
        "key: layers.11.attention.dense.weight", "compass_2024=1", "TOKEN_COUNT=1000000000",
    ],
)  # fmt: skip
def test_what_looks_like_one_stays(text: str) -> None:
    """Hashes, counts, names of files."""
    assert masked(text) is text


def _key(random_: random.Random) -> list[str]:
    body = base64.b64encode(random_.randbytes(700)).decode()
    lines = [body[place : place + 64] for place in range(0, len(body), 64)]
    return ["-----BEGIN RSA PRIVATE KEY-----", *lines, "-----END RSA PRIVATE KEY-----"]


def test_a_key_over_several_lines_is_masked() -> None:
    """Where an exception prints one, with the ranks' prefixes and without; what follows its end stays."""
    key = _key(random.Random(1))
    for prefix in ("", "[rank3]: ", "7: "):
        text = 'Traceback (most recent call last):\n  File "a.py", line 1, in f\nValueError: bad key\n'
        lines = [*text.splitlines(), *key, "RuntimeError: behind"]
        data = "".join(f"{prefix}{one}\n" for one in lines)
        half = len(data) // 2
        reader = SourceReader()
        reported = reader.feed(data[:half].encode())
        again = SourceReader()
        again.restore(msgspec.json.decode(msgspec.json.encode(reader.save()), type=Bookmark))
        reported += again.feed(data[reader.consumed_bytes :].encode()) + again.flush()
        shown = repr(reported) + "".join(entry.text for entry in reported)
        assert not any(part in shown for part in key[1:-1])
    assert in_key(b"7: " + key[1].encode()) == b"7: ***"
    assert in_key(b" iteration 12/ 100 | lm loss: 2.1") == b" iteration 12/ 100 | lm loss: 2.1"


def test_none_is_shown_sent_saved_or_logged(caplog: pytest.LogCaptureFixture) -> None:
    """In a crash's text, the last line, arguments, the environment, a run's printed name."""
    caplog.set_level("DEBUG")
    core, now, path = Core(load("", ["runs=[{paths: [/logs/*.log]}]"])), 1.7e9, "/logs/r.log"
    texts = ["".join(line(number) for number in range(1, 4))]
    for _, text in SECRETS:
        texts.append(f"------------------------ arguments ------------------------\n  note ....... {text}\n")
        texts.append(
            f"  wandb_exp_name .................. {text}\n-------------------- end of arguments ---------------------\n"
        )
        texts.append(f"export NOTE={text}\nenv: {text}\nexperiment_name: {text}\n")
        texts.append(line(4).rstrip("\n") + f" {text}\n")
        texts.append(f"[rank3]: RuntimeError: {text}\nRuntimeError: {text}\n{text}\n")
    texts.append("srun: error: node7: task 3: Exited with exit code 1\n")
    reported, offset = [], 0
    core.handle(Opened(path, path, None, 0, now, resumed=False), now)
    for number, text in enumerate(["", *texts]):
        if number == 2:
            core.handle(CaughtUp(path, now), now)
        core.handle(Data(path, offset, text.encode(), now, now, 0), now)
        offset += len(text.encode())
        if number % 50 == 2:
            reported += core.tick(now)
            now += 1.0
    reported += core.tick(now + 1) + core.tick(now + 1000)
    assert {"crash"} <= {one.incident for one in reported}
    snapshot = core.snapshot(now + 1000)
    shown = json.dumps([run.page for run in snapshot.runs], default=str) + repr(
        (list(core.runs), SourceReader().feed("".join(texts).encode()))
    )
    for text in (shown, TextFormat().page(snapshot), encode(core.save(now)).decode("latin-1"), caplog.text,
                 *(json.dumps(payload(one)) for one in reported)):  # fmt: skip
        assert not _leaks(text)


def test_none_is_shown_of_a_name(caplog: pytest.LogCaptureFixture) -> None:
    """Of a directory or a file, in whatever is named by it; two that differ in their secrets alone stay two."""
    caplog.set_level("DEBUG")
    core, now = Core(load("", ["runs=[{paths: ['/logs/**']}]"])), 1.7e9
    held = [text.strip().replace("\n", " ")[:200] for _, text in SECRETS if "://" not in text]  # no name is an address
    names = [text.replace("/", "_") for text in held]
    paths = [path for name in names for path in (f"/logs/{name}/x.out", f"/logs/{name}/x.err", f"/logs/all/{name}.log")]
    reported, steps = [], "".join(line(number) for number in range(1, 4)).encode()
    for path in paths:
        source = source_id(path)
        core.handle(Opened(source, path, None, 0, now, resumed=False), now)
        core.handle(CaughtUp(source, now), now)
        core.handle(Data(source, 0, steps, now, now, 0), now)
    for name in names[:3]:
        core.handle(Gone(source_id(f"/logs/{name}/x.out"), now), now)
    reported += core.tick(now) + core.tick(now + 100) + core.tick(now + 1000)
    snapshot = core.snapshot(now + 1000)
    assert len({source_id(path) for path in paths}) == len(set(paths))
    assert len(snapshot.runs) > len(set(names))
    assert reported
    shown = json.dumps([run.page for run in snapshot.runs], default=str) + repr(list(core.runs))
    for text in (shown, TextFormat().page(snapshot), encode(core.save(now)).decode("latin-1"), caplog.text,
                 *(json.dumps(payload(one)) for one in reported)):  # fmt: skip
        assert not _leaks(text)
