"""Builds the wheel: packs the YAML files of the formats as JSON, which loads faster. pyproject.toml says the rest."""

import json
from pathlib import Path

import yaml
from setuptools import setup
from setuptools.command.build_py import build_py


class WithFormats(build_py):
    """Writes `built.json` beside the YAML files in the wheel. An editable install reads the YAML files themselves."""

    def run(self) -> None:
        """Copy the package, then pack its formats."""
        super().run()
        if self.editable_mode:
            return
        folder = Path(self.build_lib) / "megatron_monitor" / "parsers" / "formats"
        files = {path.stem: yaml.safe_load(path.read_text()) for path in sorted(folder.glob("*.yaml"))}
        (folder / "built.json").write_text(json.dumps(files))


setup(cmdclass={"build_py": WithFormats})
