"""Dialects of a site: read by the daemon, checked by their samples, refused with the difference."""

import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner

from megatron_monitor.cli import main
from megatron_monitor.config.dialects import dialect_of
from megatron_monitor.parsers.declared.reading import Reading
from megatron_monitor.parsers.declared.schema import Dialect, LineSpec, Sample
from megatron_monitor.parsers.engine.memo import Memo
from megatron_monitor.parsers.engine.prefixes import Prefix
from megatron_monitor.parsers.engine.scan import Line, Scanner
from megatron_monitor.parsers.events import Event, IterationLogged
from megatron_monitor.parsers.reader import SourceReader
from megatron_monitor.parsers.registry import rules_with
from megatron_monitor.reports.dialects import proposed

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
    """A configuration that names a folder with one dialect."""
    (tmp_path / "dialects").mkdir()
    (tmp_path / "dialects" / "ours.yaml").write_text(OWN % "2.5")
    path = tmp_path / "config.yaml"
    path.write_text("dialects: [dialects]\n")
    return path


def test_a_sites_own_lines_are_read(config: Path, tmp_path: Path) -> None:
    """Every command that takes a configuration reads them; its samples run in check-config."""
    code, out = run("check-config", str(config))
    assert code == 0
    assert "dialect ours: its 1 samples give what they say" in out
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
        (("means: step", "means: stepp"), "ours.yaml:4: lines.0.means: expected one of begin, done"),
        (('"upd {step}/{total};"', '"{step}{total}"'), "has two placeholders with nothing between them"),
        (("upd {step}/{total};", "{step}"), "at least three characters"),
        (("all updates done", "{text} {text} {text} end"), "has more than 2 times {text}"),
        (("assign", "asign"), 'unknown key (did you mean "assign"?)'),
    ],
)
def test_what_is_wrong_is_said_with_its_line(config: Path, change: tuple[str, str], said: str) -> None:
    """A dialect that does not hold is refused at the start."""
    text = OWN.replace(*change)
    (config.parent / "dialects" / "ours.yaml").write_text(text % "2.5" if "%s" in text else text)
    code, out = run("check-config", str(config))
    assert (code, said in out) == (2, True), out


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "ours.yaml:1: is empty"),
        (b"name: ours\nabout: \xff\n", "ours.yaml:2: not UTF-8 text, from byte 18"),
        (b"name: ours\nlines: [\n", "ours.yaml:3: line 3, column 1: "),
        (b"# " + b"x" * 300_000, "ours.yaml: is longer than 256 KiB"),
        (b"a: &a [1]\nb: &b [" + b"*a," * 300 + b"]\nc: [" + b"*b," * 90 + b"]\n", "more than 20000 values"),
        (b"name: o\nlines:\n" + b"  - {means: done, line: abc}\n" * 101 + b"samples: [{line: a}]\n", "than 100 items"),
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
    (config.parent / "dialects" / "ours.yaml").write_bytes(data)
    code, out = run("check-config", str(config))
    assert (code, said in out) == (2, True), out
    assert "the key name is missing" not in out


def test_dialects_that_cannot_stand_beside_each_other(config: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two of one name are refused; of two that read one line it is said once who has it, when the daemon starts too."""
    other = config.parent / "dialects" / "other.yaml"
    other.write_text(OWN % "2.5")
    code, out = run("check-config", str(config))
    assert (code, "ours.yaml: its name 'ours' is that of " in out) == (2, True), out
    other.write_text((OWN % "2.5").replace("name: ours", "name: other").replace("{total};", "{total}; ce="))
    assert "samples.0: lm_loss is None, not 2.5" in run("check-config", str(config))[1]
    longer = (OWN % "2.5").replace("name: ours", "name: other").replace("{total};", "{total}; ce={lm_loss}")
    other.write_text(longer)
    log = config.parent / "own.log"
    log.write_text("")
    said = "other and ours read the same lines: other has them"
    assert run("check-config", str(config))[1].count(said) == 1
    run("run", "--once", "--config", str(config), str(log))
    assert caplog.text.count(said) == 1


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
    reading = Reading(Dialect(name="x", lines=(spec,), samples=(Sample(line="x"),)), spec, ())
    line = Line(text, Prefix())
    reading.head(line)
    began = time.process_time()
    assert reading.head(line) is None
    assert time.process_time() - began < 0.25  # of 64 KB; without it, years


def test_the_more_specific_dialect_has_the_line(config: Path) -> None:
    """A site's dialect of torchtitan's line: both read it, which is said once; a built-in one may be replaced."""
    (config.parent / "dialects" / "ours.yaml").write_text(
        'name: ours\nprefixes: ["[titan] {time} - {word} - {word} - "]\nlines:\n'
        '  - {means: step, line: "step:  {step}  loss:  {lm_loss}  ours:", separator: "  "}\n'
        'samples:\n  - line: "[titan] 2026-03-02 08:00:01,123 - root - INFO - step: 10  loss: 10.76  ours: 1"\n'
        "    gives: {iteration: 10, lm_loss: 10.76}\n"
    )
    code, out = run("check-config", str(config))
    assert code == 0
    assert out.count("ours and torchtitan read the same lines: ours has them, its mark is the more specific one") == 1


def test_a_hostile_line_takes_no_time(config: Path) -> None:
    """Marks are linear: a megabyte that almost fits is read in the time of any other."""
    text = "upd " + "1" * 200_000 + "/" + "2;" * 200_000
    code, out = run("explain", "--config", str(config), text)
    assert code == 0
    assert "iteration" not in out


UNKNOWN = (
    "2026-01-01 10:{0:02}:07,120 [INFO] train.py:42] iter {0}/500 | loss=3.{1} | gnorm=1.5 | lr=1.0e-04 "
    "| step_time_ms=740.5 | tokens_per_sec=12,345 | mem_gb=40.5 | temperature=1.0\n"
)
ALIGNED = (
    "2026/01/01 10:{0:02}:07 - engine - INFO - Step [{0:>5}/500]  lr: 1.0e-04  time: 0.7405  memory: 15266  "
    "loss: 3.{1}\n"
)
INSIDE = (
    "2026-01-01 10:{0:02}:07 | INFO | inner | epoch 1:  {0} / 999 loss=3.{1}, gnorm=1.5, num_updates={0}, dt=0.7405\n"
)
WORDS = "upd {0}: loss 3.{1}, time 740.50ms, mfu 35.10%\n"
DICT = "{{'loss': 3.{1}, 'grad_norm': 1.5, 'rate': 5, 'step': {0}, 'step_time': 0.7405}}\n"
BELOW = "--- batch {0}/500 done\n\t train loss: 3.{1}\n\t grad norm: 1.5\n\t step time: 0.7405\n"
JSON = '| inner | {{"epoch": 1, "loss": "3.{1}", "gnorm": "1.5", "global_step": "{0}", "dt": "0.7405"}}\n'
BAR = "Epoch 0: {0:3}%|#   | {0}/500 [00:10<16:40,  1.35it/s, v=3, loss=3.{1}, dt=0.7405]\n"
BELL = UNKNOWN.replace("\n", "\a\n")  # a character that YAML takes only escaped
FORMS = {UNKNOWN: 1.5, BELL: 1.5, ALIGNED: None, INSIDE: 1.5, WORDS: None, DICT: 1.5, BELOW: 1.5, JSON: 1.5, BAR: None}


def guessed(text: str) -> str:
    """The dialect that is proposed for a log."""
    proposal = proposed(text.encode().splitlines(keepends=True), "guessed")
    assert proposal is not None
    return proposal


def read_by(proposal: str, text: str) -> list[Event]:
    """What a log says, by such a dialect as it stands."""
    dialect = dialect_of(Path("guessed.yaml"), proposal.encode())
    reader = SourceReader(memo=Memo(Scanner(rules_with((dialect,)))))
    return [entry.event for entry in (*reader.feed(text.encode()), *reader.flush())]


@pytest.mark.parametrize(("form", "gnorm"), FORMS.items())
def test_a_proposal_works_as_it_stands(form: str, gnorm: float | None) -> None:
    """For a log of a trainer that nobody knows: what is proposed is valid, and reads every step of it."""
    text = "".join(f"warming up {n}\n{form.format(n, 900 - n)}" for n in range(1, 41)) + "end\n"
    proposal = guessed(text)
    assert "the number that grows, 1 to 40" in proposal
    steps = [event for event in read_by(proposal, text) if isinstance(event, IterationLogged)]
    assert [step.iteration for step in steps] == list(range(1, 41))
    last = steps[-1]
    assert (last.lm_loss, last.grad_norm, last.seconds_per_iteration) == (3.86, gnorm, 0.7405)


@pytest.mark.parametrize("grows", [True, False])
def test_a_time_since_the_start_grows(grows: bool) -> None:
    """`train_time` may be that or a step's; which it is its values tell."""
    form = "step:{}/500 train_loss:3.5 train_time:{}ms step_avg:90.5ms\n"
    text = "".join(form.format(n, 90 * n if grows else 90) for n in range(1, 41))
    proposal = guessed(text)
    assert ("'train_time': elapsed_seconds ms" in proposal) == grows


EPOCHS = {
    # a line of (epoch from 1, step of the epoch, loss): (its mark, steps that are read, what is asked)
    "INFO Epoch [{0}][{1:>3}/100]  loss: 3.{2}  time: 0.7405\n": (
        "[{epoch number}][{epoch_step}/{epoch_steps}]", range(10, 301, 10), "",
    ),
    "Epoch: [{0}/3]  [{1:>4}/100]  eta: 0:01:00  loss: 3.{2} (3.5)  lr: 0.001 (0.001)  time: 0.7405\n": (
        "Epoch: [{epoch number}/{epochs}]  [{epoch_step}/{epoch_steps}]", range(10, 301, 10), "",
    ),
    "TRAIN in epoch {0} , step {1}, loss = 3.{2}\n": (
        "TRAIN in epoch {epoch number} , step {epoch_step},", [*range(10, 101, 10), *range(120, 211, 10),
        *range(230, 321, 10)], "given: {epoch_steps: 110}",
    ),
    "(epoch: {0}, iters: 1,{1:03}, time: 0.7405) G: 3.{2} loss: 2.5\n": (
        "(epoch: {epoch number}, iters: {epoch_step}, ", [*range(1010, 1101, 10), *range(2120, 2211, 10),
        *range(3230, 3321, 10)], "What is the true number?",
    ),
    "    step {1:>4}/100  loss 3.{2}\nnothing of it\n[Tuned] Epoch {0}/3 -- train: 3.{2}  (70s)\n": (
        "Epoch {step}/{total} --", [1, 2, 3], "  - {means: progress, line: '  step {number}/{number}'}",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("form", "expected"), EPOCHS.items())
def test_steps_that_begin_anew_each_epoch(form: str, expected: tuple[str, Sequence[int], str]) -> None:
    """... count on, where the line names the epoch; where no line says how many an epoch has that is asked; where the
    epoch stands in a line of its own, that is the step.
    """
    mark, wanted, asked = expected
    inner, _, own = form.partition("nothing of it\n")
    lines = [inner.format(1 + n // 100, 1 + n % 100, 900 - n) for n in range(9, 300, 10)]
    lines = [line + (own.format(at // 10 + 1, 0, 900 - at) if at % 10 == 9 else "") for at, line in enumerate(lines)]
    text = "".join(lines)
    proposal = guessed(text)
    assert mark in proposal
    assert asked in proposal
    steps = [event.iteration for event in read_by(proposal, text) if isinstance(event, IterationLogged)]
    assert steps == list(wanted)


def test_other_lines_are_proposed_by_their_words() -> None:
    """Saves, evaluations and the end, behind the logger's prefix; what repeats beside them is asked about."""
    texts = [f"upd {n}/90 | loss=2.5 | sec=0.74 | gnorm=1.2" for n in range(10, 100, 10)]
    beside = {
        "Running evaluation on 40 batches": "evaluation_progress",
        "val loss 2.41 ppl 11.1": "evaluation_progress",
        "Test: [4/9] acc 0.25": "evaluation_progress",
        "Test: [8/9] acc 0.50": "evaluation_progress",
        "Test: [9/9] acc 0.75": "evaluation_progress",
        "Saving checkpoint to /c/run/step-90": "checkpoint_save_started",
        "Save weights to /c/run/best.pth": "checkpoint_saved",
        "aux loss: 2.5": "custom_progress",
        "Training finished in 1200 s": "milestone",
    }
    log = "".join(
        f"2026-01-01 10:00:0{n} - INFO - {text}\n" for n in range(3) for text in [*texts, *beside, f"temp {n}"]
    )
    proposal = guessed(log)
    assert "It begins anew: is it the step of an epoch?" in proposal
    assert "#   3 x temp 0\n" in proposal
    kinds = [event.kind for event in read_by(proposal, log)]
    assert kinds[: 9 + len(beside)] == [*["iteration"] * 9, *beside.values()]
    assert len(kinds) == 3 * (9 + len(beside))  # of no other line


def test_a_number_that_never_falls_is_the_step_before_one_that_does() -> None:
    """An update is counted on while the step is an epoch's."""
    log = "".join(f"step {n % 50} of epoch {n // 50} update {n} loss: 2.5 lr: 1.5e-05\n" for n in range(1, 140))
    proposal = guessed(log)
    assert "update {step}" in proposal
    assert "begins anew" not in proposal


@pytest.mark.parametrize("form", [UNKNOWN, DICT, BELOW, JSON])
def test_one_step_is_enough_where_it_is_called_so(form: str) -> None:
    """... and the proposal says that it is a guess. Settings that are printed in the same way are no step."""
    text = "{'lr': 1e-05, 'warmup_steps': 10}\n  total steps: 5\nloss: 2.5\n" + form.format(7, 893) + "end\n"
    proposal = guessed(text)
    assert "a guess by its name: the log has 1 such line" in proposal
    assert "gives: {iteration: 7, " in proposal
    assert proposed([b"{'lr': 1e-05, 'warmup_steps': 10}\n", b"loss: 2.5\n", b"step 7 done\n"], "guessed") is None


def test_the_dialect_command(tmp_path: Path) -> None:
    """It writes a file that check-config takes, says who reads the lines already, and shows a built-in one."""
    log = tmp_path / "unknown.log"
    log.write_text("".join(UNKNOWN.format(n, 900 - n) for n in range(1, 6)))
    code, proposal = run("dialect", str(log), "--name", "guessed")
    assert code == 0
    (tmp_path / "guessed.yaml").write_text(proposal)
    (tmp_path / "config.yaml").write_text("dialects: [guessed.yaml]\n")
    code, out = run("check-config", str(tmp_path / "config.yaml"))
    assert code == 0, out
    log.write_text("".join(f"iter {n}: loss 3.5, time 561.94ms, mfu 35.10%\n" for n in range(9)))
    assert "# nanogpt reads these lines already" in run("dialect", str(log))[1]
    log.write_text(
        "".join(f" iteration {n:8}/  50 | elapsed time per iteration (ms): 740.5 | lm loss: 3.5 |\n" for n in range(9))
    )
    out = run("dialect", str(log))[1]
    assert "# The monitor reads these lines already" in out
    assert "'elapsed time per iteration (ms)': seconds_per_iteration ms" in out
    log.write_text("nothing\n" * 5)
    code, out = run("dialect", str(log))
    assert (code, "--show" in out) == (1, True)
    assert run("dialect", "--show", "torchtitan")[1].startswith("name: torchtitan")
