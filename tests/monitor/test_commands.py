"""The commands as users call them: standard output, standard error, exit status."""

import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from megatron_monitor.cli import main
from tests.commands import command as invoke

LINE = " iteration        7/     100 | elapsed time per iteration (ms): 250.0 | lm loss: 2.5E+00 | grad norm: nan |"


def test_explain_says_what_read_a_line_and_why_none_did() -> None:
    """The rule and its event, the prefixes, or the reason."""
    found = invoke("explain", "9: [default3]:" + LINE).stdout
    assert '"task": 9' in found
    assert '"iteration": 7' in found
    assert "no text that" in invoke("explain", "hello world").stdout
    assert "none reads this line" in invoke("explain", "the last iteration 5 was good").stdout
    assert invoke("explain", stdin=LINE + "\nhello\n").stdout.count("\n") == 2


def test_check_config_lists_every_error(tmp_path: Path) -> None:
    """Exit 2 and each path with a suggestion; exit 0 for a good file."""
    bad = tmp_path / "bad.yaml"
    bad.write_text("listne: 1.2.3.4:1\ndetectors: {hang: {factr: 2}}\n")
    result = invoke("check-config", bad, code=2)
    assert "listne" in result.stderr
    assert 'detectors.hang.factr: unknown key (did you mean "factor"?)' in result.stderr
    good = Path(__file__).parents[2] / "config.yaml"
    invoke("check-config", good)


def test_a_single_reading_leaves_no_run_out(tmp_path: Path) -> None:
    """`max_runs` is for runs that go on; a report and a page of finished logs have them all."""
    for number in range(6):
        (tmp_path / f"r{number}.log").write_text(LINE + "\n")
    few = ("--set", "max_runs=2", str(tmp_path))
    page = invoke("run", "--once", *few)
    assert len(re.findall(r"^megatron_iteration\{", page.stdout, re.MULTILINE)) == 6
    assert "no training line" not in page.stderr
    report = invoke("report", "--json", *few)
    assert {f"r{number}" for number in range(6)} <= set(re.findall(r"r\d", report.stdout))


@pytest.mark.parametrize(("text", "error"), [
    ('runs: [{paths: ["/tmp/\\ud800.log"]}]', "runs.0.paths.0: expected a path of printable characters"),
    (f"web: {{basic_auth_users: {{a: $2b$99${'x' * 53}}}}}", "expected a bcrypt hash of cost 04 to 16"),
    ("web: {tls_server_config: {cert_file: /no.crt, key_file: /no.key}}", "web.tls_server_config: /no.crt or /no.key"),
])  # fmt: skip
def test_check_config_knows_what_the_daemon_refuses(text: str, error: str, tmp_path: Path) -> None:
    """Also what no look at the text alone can tell: certificates."""
    file = tmp_path / "config.yaml"
    file.write_text(text)
    result = invoke("check-config", file, code=2)
    assert error in result.stderr


def test_check_config_names_missing_files_of_notifiers(tmp_path: Path) -> None:
    """They are read at each delivery: a configuration is good without them."""
    file, key = tmp_path / "config.yaml", tmp_path / "key"
    key.write_text("abc")
    slack = "{type: slack, name: chat, url_file: none, header_files: {X-Key: key, X-Token: token}}"
    file.write_text(f"notifiers: [{slack}, {{type: pagerduty, name: pager, routing_key_file: key}}]\n")
    assert invoke("check-config", file).stderr.splitlines() == [
        f"notifiers: chat: header_files: {tmp_path}/token: No such file or directory",
        f"notifiers: chat: url_file: {tmp_path}/none: No such file or directory",
    ]


def test_a_files_name_commands_no_terminal(tmp_path: Path) -> None:
    """In what a command says, a name ends no line and carries no escape."""
    name = "a\x1b[31m\n2026-11-22 CRITICAL forged\udcff.log"
    (tmp_path / name).write_text("no training\n")
    result = invoke("run", "--once", tmp_path)
    assert "a\\x1b[31m\\n2026-11-22 CRITICAL forged\\xff.log: no training line" in result.stderr


def test_run_without_anything_to_follow_is_wrong_usage() -> None:
    """Exit 2 and a sentence that says what to give."""
    result = invoke("run", code=2)
    assert "PATH" in result.stderr


def test_run_once_prints_the_page_and_says_what_is_no_training(tmp_path: Path) -> None:
    """The metrics on standard output; files that hold none on standard error."""
    (tmp_path / "train.log").write_text(LINE + "\n")
    (tmp_path / "notes.log").write_text("hello\n")
    result = invoke("run", "--once", tmp_path / "*.log")
    assert 'megatron_iteration{run="train"} 7.0' in result.stdout
    assert "notes.log: no training line" in result.stderr
    assert 'run="notes"' not in result.stdout


@pytest.mark.parametrize("words", ["run --once", "replay", "report"])
def test_a_missing_file_beside_a_good_one_fails(words: str, tmp_path: Path) -> None:
    """The good one is read, and the other named."""
    log = tmp_path / "train.log"
    log.write_text(LINE + "\n")
    for missing, why in (("none.log", "No such file or directory"), ("none*.log", "no file matches")):
        result = invoke(*words.split(), log, tmp_path / missing, code=1)
        assert "train" in result.stdout
        assert result.stderr == f"{tmp_path / missing}: {why}\n"
    invoke(*words.split(), log)


@pytest.mark.parametrize(
    "words",
    [
        "run --once", "run --config", "replay", "report", "check-config", "simulate -o",
        "forward x.log --to http://127.0.0.1:9 --token-file",
    ],
)  # fmt: skip
def test_a_missing_file_is_named_in_one_way(words: str, tmp_path: Path) -> None:
    """Also one that a command should write, or whose directory is missing."""
    missing = tmp_path / "none" / "x"
    result = invoke(*words.split(), missing, code=None)
    assert result.exit_code in (1, 2)
    assert f"{missing}: No such file or directory" in result.stderr.splitlines()
    assert result.stderr.count("No such file") == 1
    assert "no training line" not in result.stderr


@pytest.mark.parametrize("words", ["run --once", "replay", "report"])
def test_a_pattern_without_a_file_is_named_in_one_way(words: str, tmp_path: Path) -> None:
    """And the command fails."""
    assert invoke(*words.split(), tmp_path / "*.log", code=1).stderr == f"{tmp_path}/*.log: no file matches\n"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_commands(shell: str) -> None:
    """Its script asks the program by the variable that click reads."""

    def asked(does: str, words: str = "", word: str = "") -> str:
        asks = {"_MEGATRON_MONITOR_COMPLETE": f"{shell}_{does}", "COMP_WORDS": words, "COMP_CWORD": word}
        return CliRunner().invoke(main, [], prog_name="megatron-monitor", env=asks).stdout

    assert f"_MEGATRON_MONITOR_COMPLETE={shell}_complete" in asked("source")
    found = asked("complete", "megatron-monitor rep", "rep" if shell == "fish" else "1")
    assert [word for word in ("replay", "report", "run") if word in found] == ["replay", "report"]


def test_simulate_writes_a_log(tmp_path: Path) -> None:
    """A fault by name, half way or at an iteration; an unknown one is wrong usage."""
    log = tmp_path / "x.log"
    invoke("simulate", "--iterations", "30", "--fault", "crash_oom@20", "-o", log)
    assert "out of memory" in log.read_text()
    result = invoke("simulate", "--fault", "nonsense", code=2)
    assert "hang_evaluation" in result.stderr


def test_help_keeps_its_examples_on_their_lines() -> None:
    """Every command's help says what it does, each example as a line of its own, and no mark of the formatter."""

    def every(group: click.Group, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            yield (*before, name)
            if isinstance(command, click.Group):
                yield from every(command, (*before, name))

    for command in ((), *every(main)):
        text = invoke(*command, "--help").stdout
        assert len(text) > 150
        assert "\\b" not in text, command
        assert not command or "Exit status: 0 done, 1 failed" in " ".join(text.split())
        if "Example" in text:
            assert re.search(r"^ +megatron-monitor .*$", text, re.MULTILINE), command


def test_paths_by_hand_keep_their_runs() -> None:
    """Whoever names a log wants to see it however long ago it ended, unless configured otherwise."""
    from megatron_monitor.commands.arguments import ConfigOptions
    from megatron_monitor.scalars import LONGEST_SECONDS

    assert ConfigOptions().load(["a.log"]).run_retention == LONGEST_SECONDS
    assert ConfigOptions(overrides=("run_retention=5m",)).load(["a.log"]).run_retention == 300.0
    assert ConfigOptions().load([]).run_retention == 3600.0


def test_the_last_line_of_a_replay_is_a_sentence(tmp_path: Path) -> None:
    """A job that somebody cancelled was stopped, one with an exception has crashed."""
    line = " iteration {:8d}/     100 | elapsed time per iteration (ms): 2000.0 | lm loss: 2.5E+00 |\n"
    lines = "".join(line.format(number) for number in range(1, 21))
    for word, end in (
        ("stopped", "slurmstepd: error: *** JOB 7 ON n01 CANCELLED AT 2026-04-02T15:10:00 ***\n"),
        ("crashed", 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\nKeyError: 1\n'),
    ):
        (tmp_path / "x.log").write_text(lines + end)
        last = invoke("replay", "--after", "20m", tmp_path / "x.log").stdout.splitlines()[-1]
        assert last.startswith(f"= x: {word} after iteration 20, 20 itera")
        assert "incidents: 1 x crash" in last


def test_a_misspelt_command_is_answered_with_the_nearest() -> None:
    """A word that is like none gets no guess."""
    assert "No such command 'repaly'. Did you mean 'replay'?" in invoke("repaly", code=2).output
    assert "Did you mean" not in invoke("xyzzy", code=2).output


def test_standard_input(tmp_path: Path) -> None:
    """`-` and a FIFO are read to their end by every command that reads logs; their runs are named by them."""
    line = LINE + "\n"
    assert 'megatron_iteration{run="stdin"} 7.0' in invoke("run", "--once", "-", stdin=line).stdout
    assert '"run": "stdin"' in invoke("replay", "--json", "-", stdin=line).stdout
    fifo = tmp_path / "pipe"
    os.mkfifo(fifo)
    for command, shown in (
        (("run", "--once"), 'megatron_iteration{run="pipe"} 7.0'),
        (("replay", "--json"), '"run": "pipe"'),
        (("report", "--json"), '"run": "pipe"'),
    ):
        writer = threading.Thread(target=lambda: fifo.write_text(line))
        writer.start()
        assert shown in invoke(*command, fifo).stdout
        writer.join()
