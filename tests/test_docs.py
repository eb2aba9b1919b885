"""README and ARCHITECTURE say what the code does. `make readme` writes the generated tables anew."""

from __future__ import annotations

import re
from pathlib import Path

from monitor.cli import COMMANDS, command
from monitor.metrics import CATALOGUE, MONITOR_CATALOGUE
from monitor.simulate import FAULTS
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


TABLES = {"metrics": metrics_table, "commands": commands_table}


def with_tables(text: str) -> str:
    """The text with each generated table in its place."""
    for name, build in TABLES.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        assert pattern.search(text), f"README has no place for the {name} table"
        text = pattern.sub(lambda match, build=build: match[1] + build() + "\n" + match[2], text)  # type: ignore[misc]
    return text


def test_the_readmes_tables_are_the_codes() -> None:
    """`make readme` has been run."""
    text = README.read_text()
    assert with_tables(text) == text


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


def test_the_readme_links_to_what_exists() -> None:
    """Relative links and pictures of the README point at files."""
    for target in re.findall(r"\]\(([^)#:]+)\)", README.read_text()):
        assert (ROOT / target).exists(), target


def test_metric_names_are_given_once() -> None:
    """No two rows of the catalogue name the same metric."""
    names = [metric.name for metric in CATALOGUE] + [own.name for own in MONITOR_CATALOGUE]
    assert len(names) == len(set(names))
    assert FAULTS


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text()))
