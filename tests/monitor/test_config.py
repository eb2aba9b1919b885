"""The configuration: config.yaml is the defaults, every mistake is reported with its place, also in `--set`."""

import contextlib
import re
from fnmatch import fnmatchcase
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from megatron_monitor.config import Config, ConfigError, host_and_port, load
from megatron_monitor.detectors import RULES
from megatron_monitor.scalars import LONGEST_SECONDS, ratio_of, seconds_of
from tests.conftest import examples

ROOT = Path(__file__).parents[2]
BAD = sorted((ROOT / "tests" / "config" / "bad").glob("*.yaml"))


def problems(text: str, *overrides: str) -> list[str]:
    """What `load` finds wrong, as it is printed."""
    with pytest.raises(ConfigError) as caught:
        load(text, overrides)
    return [str(problem) for problem in caught.value.errors]


# --- the file at the project's root -----------------------------------------------------------------------------------


def uncommented(text: str) -> str:
    """The text with its examples in force: the empty value above them goes, and the # of each of their lines."""
    text = re.sub(r"(?m)^(\w+:) (?:\[\]|\{\})\n(?=#  )", r"\1\n", text)
    return re.sub(r"(?m)^#(  .*)$", r"\1", text)


def keys_of(info: inspect.Type) -> set[str]:
    """Every key of a type and of what it holds, `*` standing for an index."""
    if isinstance(info, inspect.Metadata):
        named = (info.extra or {}).get("kinds")
        kinds = resolve_name(named) if named else ()
        return keys_of(info.type) | {f"*.{key}" for kind in kinds for key in keys_of(inspect.type_info(kind))}
    if isinstance(info, inspect.UnionType):
        return {key for kind in info.types for key in keys_of(kind)}
    if isinstance(info, inspect.VarTupleType):
        return {f"*.{key}" for key in keys_of(info.item_type)}
    if not isinstance(info, inspect.StructType | inspect.DataclassType):
        return set()
    keys = {field.encode_name for field in info.fields}
    return keys | {f"{field.encode_name}.{key}" for field in info.fields for key in keys_of(field.type)}


def keys_in(value: Any) -> set[str]:
    """Every key of plain values, `*` standing for an index."""
    if isinstance(value, list):
        return {f"*.{key}" for item in value for key in keys_in(item)}
    if not isinstance(value, dict):
        return set()
    return set(value) | {f"{key}.{below}" for key, item in value.items() for below in keys_in(item)}


def test_config_yaml_is_the_defaults() -> None:
    """The file that documents the configuration says what the code does without it."""
    assert load(ROOT / "config.yaml") == Config() == load("")


def test_config_yaml_shows_every_key() -> None:
    """Each key of the settings classes stands in config.yaml: plainly, or in an example where the default is empty; of
    the rules those with keys of their own, and the others' names.
    """
    text = (ROOT / "config.yaml").read_text("utf-8")
    plain, expected = keys_in(yaml.safe_load(text)), keys_of(inspect.type_info(Config))
    rules = {key for key in expected if re.fullmatch(r"detectors\.\w+(\.(enabled|severity))?", key)}
    outside_examples = {key for key in expected - rules if "*" not in key and not key.startswith("web.")}
    assert outside_examples - plain == set()
    assert {key for key in expected if not re.search(rf"\b{key.rpartition('.')[2]}\b", text)} == set()


def test_there_are_few_keys() -> None:
    """45, and 200 lines: those of all rules counted once, those of the items of lists not counted."""
    keys = {key for key in keys_of(inspect.type_info(Config)) if "*" not in key}
    leaves = {key for key in keys if not any(other.startswith(f"{key}.") for other in keys)}
    assert len({re.sub(r"^detectors\.\w+\.(enabled|severity)$", r"detectors.\1", key) for key in leaves}) <= 45
    assert len((ROOT / "config.yaml").read_text("utf-8").splitlines()) <= 200


def test_config_yaml_has_no_key_without_a_comment() -> None:
    """Each key of config.yaml, examples aside, has a comment in the line above it."""
    lines = (ROOT / "config.yaml").read_text("utf-8").splitlines()
    keys = [(lines[at - 1], line) for at, line in enumerate(lines) if re.match(r" *[a-z_]+:", line)]
    assert [line for above, line in keys if not above.lstrip().startswith("# ")] == []


def test_examples_of_config_yaml_are_valid() -> None:
    """Whoever takes the # away before the examples gets a configuration that loads."""
    text = uncommented((ROOT / "config.yaml").read_text("utf-8"))
    config = load(text, ["receiver.listen=127.0.0.1:9844"])  # without it the entry with labels says so
    assert [watch.name for watch in config.runs] == ["tr11-176B", None, "{namespace}/{job}"]
    assert [notifier.name for notifier in config.notifiers] == [
        "on-call",
        "alertmanager",
        "chat",
        "pager",
        "mail",
    ]
    assert config.web.tls_server_config is not None
    assert list(config.web.basic_auth_users) == ["prometheus"]


def test_every_detector_has_its_settings() -> None:
    """The configuration has one attribute a detector, of the detector's own settings class."""
    detectors = Config().detectors
    assert all(type(getattr(detectors, name)) is rule.settings for name, rule in RULES.items())


# --- mistakes ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_bad_file_is_refused_with_the_message_in_its_head(path: Path) -> None:
    """Each file gives exactly the problems of its first comment lines, and no other (`*` stands for anything)."""
    text = path.read_text("utf-8")
    head = re.match(r"(?:# .*\n)+", text)
    assert head is not None
    expected = [line.removeprefix("# ") for line in head[0].splitlines()]
    found = problems(text)
    patterns = [line.replace("[", "[[]") for line in expected]
    assert len(found) == len(expected), found
    assert [line for line, pattern in zip(found, patterns, strict=True) if not fnmatchcase(line, pattern)] == []


def test_error_names_the_file_and_the_line() -> None:
    """A problem in a file is printed as FILE:LINE: path: message, which editors can follow."""
    path = ROOT / "tests" / "config" / "bad" / "duplicate_key.yaml"
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value) == f"{path}:6: detectors.hang.minimum: duplicate key, first on line 4"


def test_problems_have_structure() -> None:
    """Place and message of a problem can be read apart."""
    with pytest.raises(ConfigError) as caught:
        load("detectors:\n  hang:\n    factr: 1\n")
    (problem,) = caught.value.errors
    assert (problem.path, problem.line) == ("detectors.hang.factr", 3)
    assert problem.message == 'unknown key (did you mean "factor"?)'


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "c.yaml: No such file or directory"),
        (b"listen: \xff\n", "not UTF-8 text, from byte 8"),
        (b"log_level: info\nlisten: a\x00b\n", "line 2: a character that YAML does not allow"),
    ],
)
def test_a_file_that_is_no_text(tmp_path: Path, data: bytes | None, problem: str) -> None:
    """It cannot be read, or is no text of YAML: a ConfigError like any other, with its place."""
    if data is not None:
        (tmp_path / "c.yaml").write_bytes(data)
    with pytest.raises(ConfigError, match=problem):
        load(tmp_path / "c.yaml")


@pytest.mark.parametrize("text", ["[" * 5000, "{a: " * 3000, "- " * 3000])
def test_deep_nesting(text: str) -> None:
    """Nesting beyond all reason is a problem, not a crash."""
    assert any("nested more than" in problem or "line 1" in problem for problem in problems(text))


def test_secret_is_not_repeated() -> None:
    """A mistyped address or password hash does not end up in a log by way of its error message."""
    found = problems(
        "notifiers: [{type: webhook, name: a, url: 'hunter2 ', headers: {X-Key: [hunter2]}}]",
        "web.basic_auth_users={a: hunter2}",
    )
    assert len(found) == 3
    assert "hunter2" not in "".join(found)


@examples(100)
@given(st.text(alphabet="abrunslit:[]{}&*<>!|-#'\"%@`,.0159 \n\t~=?", max_size=60))
def test_any_text_gives_a_configuration_or_problems(text: str) -> None:
    """Whatever the text, nothing but ConfigError is raised."""
    with contextlib.suppress(ConfigError):
        assert isinstance(load(text), Config)


_YAML = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@examples(100)
@given(
    st.dictionaries(st.sampled_from(sorted(keys_of(inspect.type_info(Config)))), _YAML, min_size=1, max_size=3),
)
def test_any_value_at_any_key_gives_a_configuration_or_problems(values: dict[str, Any]) -> None:
    """Whatever stands at a key, nothing but ConfigError is raised; `--set` is the shortest way to put it there."""
    sets = [f"{key}={yaml.safe_dump(value, width=1000)}" for key, value in values.items()]
    with contextlib.suppress(ConfigError):
        assert isinstance(load("", sets), Config)


# --- what is accepted -------------------------------------------------------------------------------------------------


def test_null_blocks_are_defaults() -> None:
    """A block whose lines are all commented out is null in YAML and means its default."""
    assert load("runs:\ndetectors:\n  hang:\nslurm:\nnotifiers:\nweb:\n") == Config()


def test_null_scalar_is_an_error() -> None:
    """A plain key without a value is no default: its author meant to write something."""
    assert problems("listen:\n") == ["listen: expected HOST:PORT such as 127.0.0.1:9843, got null"]


def test_anchors() -> None:
    """An alias is the value that it names."""
    config = load("runs: [{paths: [a], labels: &labels {}}, {paths: [b], labels: *labels}]")
    assert [watch.labels for watch in config.runs] == [{}, {}]


PATHS = """
state_dir: state
runs: [{paths: [logs/*.out, /abs/../x.log, ~/tr11], exclude: ["*.tmp", old/*.out]}]
notifiers: [{type: webhook, name: a, url_file: url, header_files: {Authorization: token}}]
web: {tls_server_config: {cert_file: crt, key_file: /key, client_ca_file: ca}}
"""


@pytest.mark.parametrize("in_file", [True, False])
def test_paths_are_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_file: bool) -> None:
    """Relative paths start at the file's directory, or at the working directory where there is no file."""
    (tmp_path / "c.yaml").write_text(PATHS)
    if not in_file:
        monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    config = load(tmp_path / "c.yaml" if in_file else PATHS)
    base, tls = str(tmp_path), config.web.tls_server_config
    assert config.state_dir == f"{base}/state"
    assert config.runs[0].paths == (f"{base}/logs/*.out", "/x.log", "/home/me/tr11")
    assert config.runs[0].exclude == ("*.tmp", f"{base}/old/*.out")
    assert config.notifiers[0].url_file == f"{base}/url"
    assert config.notifiers[0].header_files == {"Authorization": f"{base}/token"}
    assert tls is not None
    assert (tls.cert_file, tls.key_file, tls.client_ca_file) == (f"{base}/crt", "/key", f"{base}/ca")


@pytest.mark.parametrize(
    ("listen", "host", "port"),
    [
        ("127.0.0.1:9843", "127.0.0.1", 9843),
        ("[::1]:0", "::1", 0),
        ("0.0.0.0:9843", "0.0.0.0", 9843),
        ("h-1:80", "h-1", 80),
    ],
)
def test_host_and_port(listen: str, host: str, port: int) -> None:
    """An address is taken apart, IPv6 in brackets."""
    assert host_and_port(listen) == (host, port)


@pytest.mark.parametrize("listen", ["", ":", ":9843", "h:", "h:x", "h:-1", "h:65536", "a:b:1", "[::1]", "h h:1", "h:²"])
def test_no_address(listen: str) -> None:
    """What is not HOST:PORT is refused."""
    with pytest.raises(ValueError, match="expected"):
        host_and_port(listen)


# --- durations and ratios ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "seconds"),
    [
        *(("90s", 90.0), ("5m", 300.0), ("2h", 7200.0), ("500ms", 0.5), ("1d", 86400.0), ("1h30m", 5400.0)),
        *(("0.5s", 0.5), (90, 90.0), (0.25, 0.25), (0, 0.0), ("0s", 0.0), ("1m500ms", 60.5)),
    ],
)
def test_seconds_of(raw: object, seconds: float) -> None:
    """Durations mean what people write."""
    assert seconds_of(raw) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "raw",
    [
        *("", "90", "s", "5 m", "m5", "5M", "-5s", "5m2h", "1e3s", "٣s", "999999999d"),
        *(-1, True, None, [], float("nan"), float("inf"), 10**400, LONGEST_SECONDS * 2),
    ],
)
def test_no_duration(raw: object) -> None:
    """What is no duration, negative or endless, is refused."""
    with pytest.raises(ValueError, match="expected a duration"):
        seconds_of(raw)


@pytest.mark.parametrize(("raw", "ratio"), [("2%", 0.02), ("0.5 %", 0.005), (0.02, 0.02), (1, 1.0), ("150%", 1.5)])
def test_ratio_of(raw: object, ratio: float) -> None:
    """Ratios are written as percentages or as parts of one."""
    assert ratio_of(raw) == pytest.approx(ratio)


@pytest.mark.parametrize("raw", ["", "2", "%", "-2%", "2%%", 2, -0.1, True, None, float("nan")])
def test_no_ratio(raw: object) -> None:
    """A plain 2 may mean 2 % or 200 %, and is refused like everything that is no ratio."""
    with pytest.raises(ValueError, match="expected a ratio"):
        ratio_of(raw)


@given(st.floats(min_value=0, max_value=LONGEST_SECONDS, allow_nan=False))
def test_plain_seconds_stay(seconds: float) -> None:
    """A number of seconds is itself."""
    assert seconds_of(seconds) == seconds


# --- overrides --------------------------------------------------------------------------------------------------------


def test_override_by_dots() -> None:
    """`--set` reaches every key, and makes the mappings above it; a list is given as a whole."""
    config = load(
        "runs: [{paths: [/a.out]}]",
        [
            "detectors.hang.minimum=2s",
            "runs=[{paths: [/b.out], name: tr11}]",
            "web.basic_auth_users=null",
            "state_dir=/var/lib/x",
            "state_dir=null",
            "gpu_peak_tflops=312",
        ],
    )
    assert config.detectors.hang.minimum == 2.0
    assert [(watch.name, watch.paths) for watch in config.runs] == [("tr11", ("/b.out",))]
    assert config.state_dir is None
    assert config.gpu_peak_tflops == 312.0


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("detectors.hang.factr=1", 'detectors.hang.factr: unknown key (did you mean "factor"?)'),
        ("listn=x:1", 'listn: unknown key (did you mean "listen"?)'),
        ("runs.0.name=x", "runs.0.name: the value above this key is not a mapping"),
        ("listen.host=x", "listen.host: the value above this key is not a mapping"),
        ("listen", "listen: expected KEY=VALUE after --set"),
        ("=1", "=1: expected KEY=VALUE after --set"),
        ("listen=[", "listen: the value is not valid YAML: expected the node content, but found*"),
        ("run_retention=soon", "run_retention: expected a duration such as 90s, *"),
    ],
)
def test_bad_override(setting: str, problem: str) -> None:
    """A mistake in `--set` is reported like one in the file, without a line."""
    with pytest.raises(ConfigError) as caught:
        load("listen: 127.0.0.1:9843\nruns: [{paths: [a.out]}]\n", [setting])
    (found,) = caught.value.errors
    assert fnmatchcase(str(found), problem)
    assert found.line is None


def test_override_mends_the_file() -> None:
    """What `--set` replaces is not judged any more."""
    assert load("listen: nowhere", ["listen=127.0.0.1:1"]).listen == "127.0.0.1:1"
