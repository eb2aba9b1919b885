"""The boards' YAML: what it may say, where an error is, and how named queries are filled in."""

import re
import shutil
from pathlib import Path

import pytest

from grafana.source import schema
from grafana.source.dashboards import BOARDS
from grafana.source.dashboards import dashboard as generate
from grafana.source.queries import Queries
from grafana.source.schema import Board, BoardError, read
from tests.grafana import lint

PANEL = """
    - kind: chart
      title: Added
      description: One more panel.
      unit: none
      query: of(megatron_iteration)
      legend: iteration
"""
LAST = "      empty: No pattern of kind value is configured, or none matched\n"
"""The end of boards/run_details.yaml."""


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the YAML that may be changed."""
    copy = shutil.copytree(schema.FOLDER, tmp_path / "source", ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    monkeypatch.setattr(schema, "FOLDER", copy)
    return copy


def change(file: Path, before: str, after: str) -> None:
    """Replace what stands there once or more."""
    text = file.read_text()
    assert before in text, f"{file.name} has no {before!r}"
    file.write_text(text.replace(before, after, 1))


def test_a_panel_is_added_in_its_board_alone(source: Path) -> None:
    """Its line makes room for it, the panels before it keep their ids."""
    before = {panel["title"]: panel["id"] for panel in lint.panels(generate("run"))}
    change(
        source / "boards" / "run_details.yaml", LAST, LAST + PANEL.lstrip("\n").replace("unit: none", "unit: locale")
    )
    change(
        source / "boards" / "run_details.yaml",
        "      title: Other losses\n",
        "      title: Other losses\n      width: 6\n",
    )
    panels = {panel["title"]: panel for panel in lint.panels(generate("run"))}
    assert {title: panels[title]["id"] for title in before} == before
    assert [panels[title]["gridPos"]["w"] for title in ("Other losses", "Values of your own patterns", "Added")] == [
        6,
        9,
        9,
    ]
    assert (
        panels["Added"]["targets"][0]["expr"]
        == 'max by (cluster, run) (megatron_iteration{cluster=~"$cluster", run="$run"})'
    )


OTHERS, OWN = "Other values of the log", "Values of your own patterns"
TITLE = f"title: {OWN}"
QUERY = "max by (cluster, run, name) (megatron_custom_value{RUN})"


@pytest.mark.parametrize(
    ("before", "after", "error"),
    [
        (TITLE, TITLE + "\n      colur: blue", f"{OTHERS}: {OWN}: Object contains unknown field `colur`"),
        (TITLE, TITLE + "\n      colour: 3", f"{OTHERS}: {OWN}: Expected `str`, got `int`"),
        (TITLE, TITLE + "\n      width: 24", f"{OTHERS}: the widths of Other losses, {OWN} do not make 24"),
        (f"query: {QUERY}", "links_to_run: true", f"{OTHERS}: {OWN}: give one `query`, or several `queries`"),
        (TITLE, TITLE + "\n      steps: mfuu", f"{OTHERS}: {OWN}: no steps is called 'mfuu': mfu, "),
        (QUERY, "last_known(a, b)", f"{OTHERS}: {OWN}: last_known(a, b) has 2 arguments, not 1"),
        (QUERY, "last_known(megatron_iteration", f"{OTHERS}: {OWN}: a bracket is not closed"),
        (TITLE, TITLE + ": x", ": mapping values are not allowed here"),
        (TITLE, TITLE + "\n      title: Mine", ": this key stands twice, first on line "),
        ("A: 1000 *", "D: 1000 *", "Incidents, begin and end: Begin and end of incidents: call the queries A, B, C"),
    ],
    ids=["key", "type", "width", "no query", "unknown name", "arguments", "bracket", "no YAML", "twice", "letters"],
)
def test_an_error_names_file_and_panel(source: Path, before: str, after: str, error: str) -> None:
    """A person finds the place without a traceback."""
    change(source / "boards" / "run_details.yaml", before, after)
    with pytest.raises(BoardError, match=rf"^boards/run_details.yaml:.*{re.escape(error)}"):
        generate("run")


def test_every_file_of_sections_is_on_a_board() -> None:
    """A file that no board names would be shown nowhere."""
    named = {file for name in BOARDS for file in (name, *read(f"boards/{name}.yaml", Board).below)}
    assert {path.stem for path in (schema.FOLDER / "boards").iterdir()} == named


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("up", "up"),
        ("twice(up)", "(up + up)"),
        ("twice(twice(a))", "((a + a) + (a + a))"),
        ('-twice(f by (a, b) (x{c="), d"}))', '-(f by (a, b) (x{c="), d"}) + f by (a, b) (x{c="), d"}))'),
        ("all{RUN}", 'all{run="$run"}'),
        ("RUNS not_twice(a)", "RUNS not_twice(a)"),
        ("apply(rate, a[5m])", "rate(a[5m])"),
        ("apply(twice, a)", "(a + a)"),
        ("now()", "time()"),
        ("ended( @ end())", "(up) @ end()"),
        ("ended()", "(up)"),
    ],
)  # fmt: skip
def test_named_queries_are_filled_in(text: str, filled: str) -> None:
    """Arguments may have brackets, strings and named queries in them; what is not named stays as it is."""
    known = {
        "twice(X)": "(X + X)",
        "RUN": 'run="$run"',
        "apply(F, X)": "F(X)",
        "now()": "time()",
        "ended(AT)": "(up)AT",
    }
    assert Queries(known).filled(text) == filled
