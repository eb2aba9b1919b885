"""The wheel's layout: one top-level package, `megatron_monitor`, with `monitor`, `parsers` and the files of `assets`.

Everything else stands in pyproject.toml. The repository keeps its packages at the top level, where they are read; a
training repository may have packages of the same names, so that they must not be installed there.
"""

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ENDS = ("md", "yml", "yaml", "json", "sh", "sbatch", "service", "tmpl", "conf", "alloy", "txt", "default")
ASSETS = ["config.yaml", "LICENSE", "grafana/dashboards/*.json", *(f"deploy/**/*.{end}" for end in ENDS)]
PACKAGES = [f"megatron_monitor.{name}" for name in find_packages(include=["monitor*", "parsers*"])]


class WithAssets(build_py):
    """The assets are files alone, though setup.py stands beside them."""

    def find_package_modules(self, package: str, package_dir: str) -> list[tuple[str, str, str]]:
        """Modules of a package."""
        return [] if package == "megatron_monitor.assets" else super().find_package_modules(package, package_dir)


setup(
    cmdclass={"build_py": WithAssets},
    packages=["megatron_monitor", "megatron_monitor.assets", *PACKAGES],
    package_dir={
        "megatron_monitor": "megatron_monitor",
        "megatron_monitor.monitor": "monitor",
        "megatron_monitor.parsers": "parsers",
        "megatron_monitor.assets": ".",
    },
    package_data={
        "megatron_monitor.monitor": ["**/*"],
        "megatron_monitor.parsers": ["**/*"],
        "megatron_monitor.assets": ASSETS,
    },
    exclude_package_data={"": ["*.pyc"]},
)
