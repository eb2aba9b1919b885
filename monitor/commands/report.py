"""`report`: the benchmark table of a folder of logs, one row a run."""

import sys
from pathlib import Path
from typing import Any

import click

from monitor.commands.arguments import COUNT, POSITIVE, config_option, configured, set_option, spooled, warn
from monitor.commands.reading import runs_of
from monitor.model.flops import FORMULAS
from monitor.reports import html
from monitor.reports.benchmark import GROUPS, SORTS, as_csv, as_json, as_markdown, benchmark
from monitor.reports.rows import Options


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@click.option("--format", "form", type=click.Choice(["markdown", "csv", "json", "html"]), default="markdown",
              show_default=True, help="How it is written.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="File; standard output if none.")
@click.option("--sort", type=click.Choice(list(SORTS)), default="seconds", show_default=True, help="Best first.")
@click.option("--group-by", type=click.Choice(list(GROUPS)), help="One table for each value.")
@click.option("--baseline", metavar="RUN", help="Show each run's difference and scaling efficiency to this one.")
@click.option("--iterations", type=POSITIVE, help="Days until so many iterations.")
@click.option("--tokens", type=COUNT, help="Days until so many tokens, e.g. 400B.")
@click.option("--formula", type=click.Choice(list(FORMULAS)), help="Recompute all TFLOPs by one formula.")
@click.option("--peak", type=click.FloatRange(0, min_open=True), help="Peak of one GPU in TFLOP/s, for MFU.")
@click.option("--gpus-per-node", type=POSITIVE, help="For Nodes, where the log does not have it.")
@click.option("--gpus", "at_hand", type=POSITIVE, help="GPUs that were at hand: those left over are idle.")
@click.option("--extra", is_flag=True, help="More columns: MFU, PetaFLOPs, bubble, idle GPUs, formula.")
@config_option
@set_option
def report(
    paths: tuple[str, ...], form: str, output: Path | None, sort: str, group_by: str | None, baseline: str | None,
    iterations: int | None, tokens: int | None, formula: str | None, peak: float | None, gpus_per_node: int | None,
    at_hand: int | None, extra: bool, config_file: Path | None, overrides: tuple[str, ...],
) -> None:  # fmt: skip
    r"""Make the benchmark table of PATH: one row a run, medians over steady iterations.

    PATH may be files, directories, globs, or - for standard input. A run's name is its file's.

    \b
    Examples:
      megatron-monitor report /logs/tuning
      megatron-monitor report /logs/tuning --baseline tp8-pp12 --iterations 95367 --extra
      megatron-monitor report /logs/tuning --format html -o report.html
    """
    with spooled(paths) as files:
        config = configured(config_file, overrides, files)
        options = Options(peak or config.gpu_peak_tflops, gpus_per_node, at_hand, iterations, tokens, formula)
        runs, problems = runs_of(config, options)
    rows = [row for _, row in runs]
    warn(*problems)
    try:
        found = benchmark(rows, sort, group_by, baseline)
    except LookupError as error:
        raise click.BadParameter(str(error.args[0]), param_hint="--baseline") from error
    written: Any = {"markdown": as_markdown, "csv": as_csv, "json": as_json, "html": html.page}[form]
    result = written(found, extra)
    if output is None:
        click.echo(result, nl=not result.endswith("\n"))
    else:
        output.write_text(result, encoding="utf-8", newline="")
    sys.exit(0 if rows else 1)
