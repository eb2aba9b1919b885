"""Formats of a site: read by the daemon, checked by their samples, refused with the difference."""

import re
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from megatron_monitor.cli import main
from megatron_monitor.parsers.declared.reading import LineReader
from megatron_monitor.parsers.declared.schema import Format, FormatSample, LineSpec
from megatron_monitor.parsers.engine.prefixes import Prefix
from megatron_monitor.parsers.engine.scan import Line

OWN = """\
name: ours
prefixes: ["{time} | "]
lines:
  - means: step
    line: "upd {step}/{total};"
    separator: ";"
    assign: "="
    fields: {ce: lm_loss, sec: seconds_per_iteration, tok/s: tokens_per_second}
  - {means: done, line: "all updates done"}
samples:
  - line: "2026-01-01 10:00:00 | upd 5/50; ce=2.5; sec=1.5; tok/s=12.5K"
    gives: {iteration: 5, train_iterations: 50, lm_loss: %s, seconds_per_iteration: 1.5, tokens_per_second: 12500.0}
"""


def run(*arguments: str) -> tuple[int, str]:
    """Exit code and all that was printed."""
    done = CliRunner().invoke(main, arguments)
    return done.exit_code, done.output


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """A configuration that names one format."""
    (tmp_path / "formats").mkdir()
    (tmp_path / "formats" / "ours.yaml").write_text(OWN % "2.5")
    path = tmp_path / "config.yaml"
    path.write_text("formats: [formats/ours.yaml]\n")
    return path


def test_a_sites_own_lines_are_read(config: Path, tmp_path: Path) -> None:
    """Every command that takes a configuration reads them; its samples run in check-config."""
    code, out = run("check-config", str(config))
    assert code == 0
    assert "format ours: all 1 samples give the expected events" in out
    lines = [
        f"2026-01-01 10:{n // 4:02}:{n % 4 * 15:02} | upd {n}/50; ce={3 - n / 50}; sec=15.0\n" for n in range(1, 51)
    ]
    (tmp_path / "own.log").write_text("".join([*lines, "all updates done\n"]))
    code, out = run("replay", str(tmp_path / "own.log"), "--config", str(config))
    assert "finished after iteration 50, 50 iterations" in out
    assert "firing" not in out
    code, out = run("explain", "--config", str(config), "upd 7/50; ce=2.5; sec=1.5")
    assert out.startswith("ours.step: ")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("%s", "2.4"), "ours.yaml:11: samples.0: lm_loss is 2.5, not 2.4"),
        (("sec: seconds_per_iteration", "sec: secs"), "lines.0.fields.sec: 'secs' is nothing that is known of a step"),
        (("sec: seconds_per_iteration", "sec: allocated s"), "allocated has no unit 's'"),
        (("means: step", "means: stepp"), "ours.yaml:4: lines.0.means: expected one of step, evaluation"),
        (('"upd {step}/{total};"', '"{step}{total}"'), "has two placeholders with nothing between them"),
        (("upd {step}/{total};", "{step}"), "at least three characters"),
        (("all updates done", "{text} {text} {text} end"), "has more than 2 times {text}"),
        (("assign", "asign"), 'unknown key (did you mean "assign"?)'),
    ],
)
def test_what_is_wrong_is_said_with_its_line(config: Path, change: tuple[str, str], said: str) -> None:
    """A format that does not hold is refused at the start."""
    text = OWN.replace(*change)
    (config.parent / "formats" / "ours.yaml").write_text(text % "2.5" if "%s" in text else text)
    code, out = run("check-config", str(config))
    assert (code, said in out) == (2, True), out


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "ours.yaml:1: the file is empty"),
        (b"name: ours\nabout: \xff\n", "ours.yaml:2: not UTF-8 text, from byte 18"),
        (b"name: ours\nlines: [\n", "ours.yaml:3: line 3, column 1: "),
        (b"# " + b"x" * 300_000, "ours.yaml: is longer than 256 KiB"),
        (b"a: &a [1]\nb: &b [" + b"*a," * 300 + b"]\nc: [" + b"*b," * 90 + b"]\n", "more than 20000 values"),
        (
            b'name: o\nlines: [{means: done, line: "{text} ab", anywhere: true}]\nsamples: [{line: a}]\n',
            "ours.yaml:2: lin",
        ),
        (
            b'name: o\nlines: [{means: done, line: "' + b"abc {number} " * 50 + b'"}]\nsamples: [{line: a}]\n',
            "than 40 place",
        ),
    ],
)
def test_a_file_of_any_content_is_refused_with_its_line(config: Path, data: bytes, said: str) -> None:
    """... and with nothing else that follows from it."""
    (config.parent / "formats" / "ours.yaml").write_bytes(data)
    code, out = run("check-config", str(config))
    assert (code, said in out) == (2, True), out
    assert "the key name is missing" not in out


def test_formats_that_cannot_stand_beside_each_other(config: Path) -> None:
    """Two of one name are refused."""
    other = config.parent / "formats" / "other.yaml"
    other.write_text(OWN % "2.5")
    config.write_text("formats: [formats/ours.yaml, formats/other.yaml]\n")
    code, out = run("check-config", str(config))
    assert (code, "formats.1.name: 'ours' is already the name of formats.0" in out) == (2, True), out
    other.write_text((OWN % "2.5").replace("name: ours", "name: other").replace("{total};", "{total}; ce="))
    assert "samples.0: lm_loss is None, not 2.5" in run("check-config", str(config))[1]


HOSTILE = {
    "abc {step}," + ",".join(["{number}"] * 30) + " end": "abc " + "1," * 30_000,
    "abc {step}  " + "  ".join(["{number}"] * 30) + "  end": "abc " + ("1" + " " * 30) * 2_000,
    "abc " + " ".join(["{word}"] * 38) + " {step} end": "abc " + "a " * 30_000,
    "aaa{text}a{text}ab {step}": "a" * 60_000 + "ab ",
    "abc {bar} {bar} {clock}:{clock} {step}": "abc " + " 10%|" * 12_000,
}


@pytest.mark.parametrize(("mark", "text"), HOSTILE.items())
def test_no_mark_hangs(mark: str, text: str) -> None:
    """What a placeholder has taken it keeps: a line made to fit nearly is given up at once."""
    spec = LineSpec(means="step", line=mark, anywhere=not mark.startswith("abc"))
    assert not list(spec.problems())
    reading = LineReader(Format(name="x", lines=(spec,), samples=(FormatSample(line="x"),)), spec)
    line = Line(text, Prefix())
    reading.head(line)
    began = time.process_time()
    assert reading.head(line) is None
    assert time.process_time() - began < 0.25  # of 64 KB; without it, years


def test_a_hostile_line_takes_no_time(config: Path) -> None:
    """Marks are linear: a megabyte that almost fits is read in the time of any other."""
    text = "upd " + "1" * 200_000 + "/" + "2;" * 200_000
    code, out = run("explain", "--config", str(config), text)
    assert code == 0
    assert "iteration" not in out


def test_the_formats_command() -> None:
    """It lists the built-in ones, prints the file of one, and names them all where a name is wrong."""
    code, out = run("formats")
    assert code == 0
    assert re.search("^torchtitan +torchtitan, from its first", out, re.MULTILINE), out
    assert run("formats", "torchtitan")[1].startswith("name: torchtitan")
    code, out = run("formats", "torchtitann")
    assert (code, "nanogpt, nanotron" in out) == (2, True), out
