"""README, docs/ and ARCHITECTURE state what the code does. `make readme` writes the generated tables again."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from monitor.audit import CHECKS, GONE, IGNORABLE
from monitor.cli import COMMANDS, command
from monitor.detectors import DETECTORS
from monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from monitor.model.flops import FORMULAS
from monitor.run.phases import RUN_STATES, Phase
from monitor.simulate import FAULTS
from parsers.declared.builtin import built_in
from parsers.declared.targets import UNITS
from parsers.events import ANSI, Failure
from parsers.registry import SPEAKERS

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def metrics_table() -> str:
    """The catalogue as Markdown."""
    rows = ["| metric | type | labels beside `run` | meaning |", "| --- | --- | --- | --- |"]
    for metric in CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in metric.labels) or ""
        rows.append(f"| `{metric.name}` | {metric.kind} | {labels} | {metric.help} |")
    for own in MONITOR_CATALOGUE:
        labels = ", ".join(f"`{label}`" for label in own.labels) or ""
        rows.append(f"| `{own.name}` | {own.kind} | {labels} | {own.help} |")
    return "\n".join(rows)


def commands_table() -> str:
    """Every command with the first sentence of its help."""
    rows = ["| command | does |", "| --- | --- |"]
    helps = {name: command(name).help or "" for name in sorted(COMMANDS)}
    rows += [f"| `megatron-monitor {name}` | {text.split('.')[0].strip()} |" for name, text in helps.items()]
    return "\n".join(rows)


def checks_table() -> str:
    """Every consistency check by its code."""
    rows = ["| code | check | what must hold | shown by |", "| --- | --- | --- | --- |"]
    rows += [f"| {code} | {check.name} | {check.rule} | {check.shown} |" for code, check in CHECKS.items()]
    return "\n".join(rows)


def dialects_table() -> str:
    """Every dialect that is data, with its first sample."""
    rows = ["| dialect | program | a line | source |", "| --- | --- | --- | --- |"]
    for dialect in built_in():
        line = ANSI.sub("", dialect.samples[0].line).strip()
        line = " / ".join(part.strip() for part in line.split("\n")).replace("|", "\\|")
        rows.append(f"| `{dialect.name}` | {dialect.about} | `{line[:300]}` | {dialect.source} |")
    return "\n".join(rows)


def targets_table() -> str:
    """What a name can stand for, and the units in which it may be printed."""
    rows = ["| ours | units |", "| --- | --- |"]
    by_units: dict[str, list[str]] = {}
    for name, units in UNITS.items():
        by_units.setdefault(", ".join(f"`{unit}`" for unit in units if unit), []).append(f"`{name}`")
    rows += [f"| {', '.join(sorted(names))} | {units} |" for units, names in sorted(by_units.items())]
    return "\n".join(rows)


TABLES = {
    "metrics": (README, metrics_table),
    "commands": (README, commands_table),
    "dialects": (ROOT / "docs" / "dialects.md", dialects_table),
    "targets": (ROOT / "docs" / "dialects.md", targets_table),
    "checks": (ROOT / "docs" / "checks.md", checks_table),
}


def with_table(name: str) -> tuple[Path, str]:
    """The file that holds the generated table, and its text with the table as it should be."""
    path, build = TABLES[name]
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    text = path.read_text()
    assert pattern.search(text), f"{path} has no place for the {name} table"
    return path, pattern.sub(lambda match: match[1] + build() + "\n" + match[2], text)


@pytest.mark.parametrize("name", TABLES)
def test_generated_tables_are_up_to_date(name: str) -> None:
    """`make readme` has been run."""
    path, text = with_table(name)
    assert path.read_text() == text


def test_every_check_of_the_code_has_a_row() -> None:
    """A finding's code stands in `CHECKS`; a row that the incident shows is a finding somewhere."""
    audit = "".join(path.read_text() for path in (ROOT / "monitor/audit").glob("*.py") if path.name != "checks.py")
    found = set(re.findall(r'(?:Finding|_Row)\(\s*"(K\d\d)"', audit))
    reports = "".join(path.read_text() for path in (ROOT / "monitor/reports").glob("*.py"))
    assert found == set(IGNORABLE)
    assert set(re.findall(r"\bK\d\d\b", audit + reports)) <= set(CHECKS)
    assert list(CHECKS) == [f"K{number:02}" for number in range(1, 30) if f"K{number:02}" not in GONE]


DOCS = {path.name: path for path in sorted((ROOT / "docs").glob("*.md"))}


def headings(path: Path) -> list[str]:
    """The headings of a page."""
    return [line.lstrip("# ") for line in path.read_text().splitlines() if line.startswith("#")]


def anchor(heading: str) -> str:
    """The address of a heading within its page."""
    return re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")


def test_citations_of_the_docs_exist() -> None:
    """Code names a page of docs/, often with a section in quotes: both exist."""
    folders = ("monitor", "parsers", "tests", "docs", "deploy", "benchmarks")
    files = [path for folder in folders for kind in ("*.py", "*.md") for path in (ROOT / folder).rglob(kind)]
    for path in [*files, *ROOT.glob("*.md"), ROOT / "config.yaml"]:
        text = re.sub(r"\s+", " ", path.read_text())
        for name, section in re.findall(r'docs/([\w-]+\.md)(?:, "([^"]+)")?', text):
            assert name in DOCS, (path, name)
            assert not section or section in headings(DOCS[name]), (path, name, section)


@pytest.mark.parametrize("page", [*DOCS.values(), README], ids=lambda page: page.name)
def test_links_point_at_what_exists(page: Path) -> None:
    """Relative links, pictures and anchors of README and docs/."""
    text = re.sub(r"`[^`\n]*`", "", page.read_text())  # a line of a log may look like one
    for target, place in re.findall(r"\]\(([^)#:]*)(?:#([\w-]+))?\)", text):
        linked = page.parent / target if target else page
        assert linked.exists(), target
        assert not place or place in map(anchor, headings(linked)), (target, place)


def test_the_interface_lists_every_name() -> None:
    """docs/interface.md has every kind of incident, failure, phase and state."""
    text = (ROOT / "docs" / "interface.md").read_text()
    named = (*DETECTORS, *get_args(Failure), *get_args(Phase), *RUN_STATES)
    assert [name for name in named if f"`{name}`" not in text] == []


def test_formulas_are_all_described() -> None:
    """docs/formulas.md names every formula by which `flops` and `report` compute."""
    text = (ROOT / "docs" / "formulas.md").read_text()
    assert [name for name in FORMULAS if f"`{name}`" not in text] == []


def test_survivors_that_are_explained_stand_in_the_code() -> None:
    """docs/mutants.md quotes lines of today: a reason for one that was changed is none."""
    rows = re.findall(r"^\| `([^`]+[.]py)` \| `([^`]+)` \|", DOCS["mutants.md"].read_text().replace("\\|", "|"), re.M)
    assert rows
    for file, row in rows:
        assert row in " ".join(line.strip() for line in (ROOT / file).read_text().splitlines()), row


def test_every_room_of_the_architecture_exists() -> None:
    """Each path that ARCHITECTURE.md names in code stands in the tree."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for path in re.findall(r"`((?:monitor|parsers)/[\w/.]*)`", text):
        assert (ROOT / path).exists(), path


def test_architecture_stays_short() -> None:
    """One screen and a half: what is longer is not read again."""
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 75


def test_every_speaker_says_who_it_reads() -> None:
    """A parser's docstring names its program, so that a stranger finds the file."""
    for speaker in SPEAKERS:
        assert speaker.__doc__
        assert len(speaker.__doc__) > 60, speaker.__name__


def test_metric_names_are_given_once() -> None:
    """No two rows of the catalogue name the same metric."""
    names = [metric.name for metric in CATALOGUE] + [own.name for own in MONITOR_CATALOGUE]
    assert len(names) == len(set(names))
    assert FAULTS


if __name__ == "__main__":
    for table in TABLES:
        target, text = with_table(table)
        target.write_text(text)
