"""Secrets in the forms of their issuers (secrets.yaml): none is in what the monitor shows, sends, saves or logs, and
nothing else is masked.
"""

import base64
import json
import random
import string
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from megatron_monitor.config import load
from megatron_monitor.core import Core
from megatron_monitor.follow.messages import CaughtUp, Data, Gone, Opened, source_id
from megatron_monitor.notifiers import payload
from megatron_monitor.parsers.reader import Bookmark, SourceReader
from megatron_monitor.parsers.redaction import in_key, masked
from megatron_monitor.prometheus_text import TextFormat
from tests.conftest import examples, loaded
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


_DATA = loaded(Path(__file__).with_name("secrets.yaml").read_text())
_KEY = "5ecretbeef0123456789abcdef0123456789abcdef"


def _secrets() -> Iterator[tuple[str, str]]:
    """Shapes alone and as people write them around; of names each form."""
    random_ = random.Random(7)

    def filled(form: str) -> str:
        while "{a" in form or "{h" in form:
            begin = min(place for place in (form.find("{a"), form.find("{h")) if place >= 0)
            end = form.index("}", begin)
            form = form[:begin] + _made(random_, form[begin + 1 : end]) + form[end + 1 :]
        return form

    for form in _DATA["shapes"]:
        for around in ("{}", "value '{}' is wrong", "X={}", '{{"x": "{}"}}'):
            yield form, around.format(filled(form))
    for form in _DATA["named"]:
        yield form, filled(form)


SECRETS = list(_secrets())


def _leaks(text: str) -> bool:
    return _MARK.lower() in text.lower() or "5ec4e79" in text


def test_each_is_masked() -> None:
    """By itself, and masking twice is masking once."""
    assert len(SECRETS) >= 200
    assert [text for _, text in SECRETS if _leaks(masked(text)) or masked(masked(text)) != masked(text)] == []


@pytest.mark.parametrize(("text", "expected"), _DATA["masked"].items())
def test_a_secret_is_masked(text: str, expected: str) -> None:
    """By its name, by its shape, in an address; what stands around it stays."""
    assert masked(text) == expected


@pytest.mark.parametrize("text", [line(7).rstrip("\n") + " tokens per second: 12.0 |", *_DATA["plain"]])
def test_what_looks_like_one_stays(text: str) -> None:
    """Hashes, counts, names of files; a training's own tokens and keys are what the monitor reads."""
    assert masked(text) is text


@examples(200)
@given(st.lists(st.sampled_from([*_DATA["masked"], "=", ": ", "...", "token", "'", " ", "None", "***"])).map("".join))
@example(f"curl -u me:{_KEY} https://xsetenv WANDB_API_KEY {_KEY}curl -u me:{_KEY} https://x")
@example(f"ghp_{_KEY}setenv WANDB_API_KEY {_KEY}curl -u me:{_KEY} https://x")
def test_masking_twice_is_masking_once(text: str) -> None:
    """However such pieces meet."""
    assert masked(masked(text)) == masked(text)


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
