"""`report`: the benchmark table of a folder of logs, one row a run."""

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from shutil import get_terminal_size
from typing import Any, TextIO, TypeAlias

import click

from megatron_monitor import archive as readers
from megatron_monitor.archive import Done, Reading, Task, lines_of, merged, tasks_of, together
from megatron_monitor.commands.arguments import POSITIVE, Given, count, fail, spooled, warn, with_config
from megatron_monitor.commands.progress import progress
from megatron_monitor.model.flops import FORMULAS
from megatron_monitor.parsers.redaction import masked_path
from megatron_monitor.reports import html
from megatron_monitor.reports.benchmark import GROUPS, SORTS, Benchmark, as_csv, as_json, as_markdown, benchmark, table
from megatron_monitor.reports.rows import Options, Row
from megatron_monitor.reports.tables import aligned
from megatron_monitor.scalars import one_line

Readers: TypeAlias = Callable[[Iterable[Task]], Iterator[Done]]


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--format", "form", type=click.Choice(["markdown", "csv", "json", "html", "jsonl"]), default="markdown",
              show_default=True, help="How it is written; jsonl: each row as soon as it is known.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File; standard output if none.")
@click.option("--sort", type=click.Choice(list(SORTS)), default="seconds", show_default=True, help="Best first.")
@click.option("--group-by", type=click.Choice(list(GROUPS)), help="One table for each value.")
@click.option("--baseline", metavar="RUN", help="Show each run's difference and scaling efficiency to this one.")
@click.option("--iterations", type=POSITIVE, help="Days until so many iterations.")
@click.option("--tokens", type=count, help="Days until so many tokens, e.g. 400B.")
@click.option("--formula", type=click.Choice(list(FORMULAS)), help="Recompute all TFLOPs by one formula.")
@click.option("--peak", type=click.FloatRange(0, min_open=True), help="Peak of one GPU in TFLOP/s, for MFU.")
@click.option("--gpus-per-node", type=POSITIVE, help="For Nodes, where the log does not have it.")
@click.option("--gpus", "at_hand", type=POSITIVE, help="GPUs that were at hand: those left over are idle.")
@click.option("--extra", is_flag=True, help="More columns: MFU, PetaFLOPs, bubble, idle GPUs, formula.")
@click.option("--resume", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
              help="Rows as JSON lines into FILE; files whose rows it has, unchanged, are not read again.")  # fmt: skip
@click.option("--workers", type=POSITIVE, help="Processes that read; a core each where there is much to read.")
@click.option("--ray", metavar="ADDRESS", help="Read by the tasks of this Ray cluster (`auto`: the one we are in).")
@with_config
def report(
    paths: tuple[str, ...], form: str, output: Path | None, sort: str, group_by: str | None, baseline: str | None,
    iterations: int | None, tokens: int | None, formula: str | None, peak: float | None, gpus_per_node: int | None,
    at_hand: int | None, extra: bool, resume: Path | None, workers: int | None, ray: str | None,
    given: Given,
) -> None:  # fmt: skip
    r"""Make the benchmark table of PATH: one row a run, medians over steady iterations.

    PATH may be files, directories, globs, or - for standard input. A run's name is its file's.

    \b
    Examples:
      megatron-monitor report /logs/tuning
      megatron-monitor report /logs/tuning --baseline tp8-pp12 --iterations 95367 --extra
      megatron-monitor report /logs/tuning --format html -o report.html
    """
    out = sys.stdout
    with spooled(paths) as files, redirect_stdout(sys.stderr):  # Ray prints to it
        config = given.configured(files)
        options = Options(peak or config.gpu_peak_tflops, gpus_per_node, at_hand, iterations, tokens, formula)
        read = partial(readers.read_task, config=config, options=options, slim=form != "html")
        read_all: Readers = partial(_read, read=read, workers=workers, ray=ray)
        groups = readers.groups_of(config)
        if not groups:
            patterns = (masked_path(pattern) for watch in config.runs for pattern in watch.paths)
            warn("no file matches " + ", ".join(patterns))
        with progress(file.path for task in groups for file in task.files):
            if resume is not None or form == "jsonl":
                sys.exit(0 if _lines(groups, read_all, resume or output or out, anew=resume is None) else 1)
            rows = _rows(groups, read_all)
    try:
        found = benchmark(rows, sort, group_by, baseline)
    except LookupError as error:
        raise click.BadParameter(str(error.args[0]), param_hint="--baseline") from error
    if form == "markdown" and output is None and sys.stdout.isatty():
        click.echo(_on_terminal(found, extra))
        sys.exit(0 if rows else 1)
    written: Any = {"markdown": as_markdown, "csv": as_csv, "json": as_json, "html": html.page}[form]
    result = written(found, extra)
    if output is None:
        click.echo(result, nl=not result.endswith("\n"))
    else:
        output.write_text(result, encoding="utf-8", newline="")
    sys.exit(0 if rows else 1)


def _rows(groups: Sequence[Task], read_all: Readers) -> list[Row]:
    rows: list[Row] = []
    for done in merged(read_all(tasks_of(groups))):
        for _, reading in done if len(done) == 1 else read_all([together(task for task, _ in done)]):
            rows += reading.rows
            warn(*reading.problems)
    return rows


_FIRST = ("Run", "Sec/it", "TFLOPs", "Iterations", "Samples/s", "Diff", "GPUs", "GBS", "Mem", "TP", "PP", "DP")


def _on_terminal(found: Benchmark, extra: bool) -> str:
    """Tables that fit: the columns that matter most of those that have room, and which have none; notes below."""
    out = []
    for name, rows in found.groups:
        whole = table(found, rows, extra).filled()
        shown = whole.fitting(_FIRST, get_terminal_size().columns, without="Notes")
        missing = ", ".join(header for header in whole.headers if header not in (*shown.headers, "Notes"))
        out += [*([name] if name else []), aligned(shown), *([f"No room here for {missing}."] if missing else []), ""]
    out += [f"{row.run}: {note}" for row in found.rows for note in row.notes]
    return "\n".join(one_line(text) for text in "\n".join(out + found.warnings).split("\n"))


def _read(tasks: Iterable[Task], read: readers.Read, workers: int | None, ray: str | None) -> Iterator[Done]:
    tasks = list(tasks)
    if ray is None:
        return readers.read_tasks(tasks, read, readers.workers_for(tasks, workers))
    if find_spec("ray") is None:
        fail("--ray needs the extra: pip install 'megatron-monitor[ray]'", code=2)
    return readers.read_by_ray(tasks, read, ray)


def _lines(groups: Sequence[Task], read_all: Readers, to: Path | TextIO, *, anew: bool) -> bool:
    """Rows as JSON lines, each as soon as it is known; whether there are any."""
    if not isinstance(to, Path):
        return sum(len(reading.rows) for _, reading in _written(to, read_all(tasks_of(groups)))) > 0
    if anew:
        to.unlink(missing_ok=True)
    left = readers.left_of(groups, to)
    with to.open("a", encoding="utf-8") as stream:
        read = _written(stream, read_all(tasks_of(left)))
        done = [(task, Reading(jobs=reading.jobs)) for task, reading in read]
    for several in merged(done):
        if len(several) > 1:
            for task, reading in read_all([together(task for task, _ in several)]):
                readers.exchange(to, several, (task, reading))
    return readers.rows_in(to) > 0


def _written(stream: TextIO, done: Iterable[Done]) -> Iterator[Done]:
    for task, reading in done:
        readers.write(stream, lines_of(task, reading))
        warn(*reading.problems)
        yield task, reading
