"""ds_report (deepspeed/env_report.py) and banners that name versions; every rank prints it, interleaved and glued."""

from collections.abc import Iterator

from parsers.engine.scan import Line, Rule
from parsers.events import Event, SoftwareSeen
from parsers.patterns import lazy

# `torch version .................... 2.9.1+cu128`, `deepspeed info ................... 0.18.3, unknown, unknown`
_REPORTED = lazy(
    r"\b(torch version|deepspeed info|nvcc version|torch cuda version|torch hip version) \.{2,40} ([\w.+-]{1,60})"
)
# `DeepSpeed info: version=0.16.2, git-hash=unknown, git-branch=unknown`
_ENGINE = lazy(r"DeepSpeed info: version=([\w.+-]{1,60})")
# `**** Git info for Megatron: git_hash=ff4477e git_branch=main ****`
_GIT = lazy(r"Git info for Megatron: git_hash=(\w{1,64})")
_NAMES = {
    "torch version": "torch",
    "deepspeed info": "deepspeed",
    "nvcc version": "nvcc",
    "torch cuda version": "cuda",
    "torch hip version": "hip",
}


def read_versions(line: Line) -> Iterator[Event]:
    """Every version named in the line."""
    for name, version in _REPORTED.findall(line.text):
        if version != "None":
            yield SoftwareSeen(name=_NAMES[name], version=version, **line.origin)
    if match := _ENGINE.search(line.text):
        yield SoftwareSeen(name="deepspeed", version=match[1], **line.origin)
    if (match := _GIT.search(line.text)) and match[1] != "unknown":
        yield SoftwareSeen(name="megatron", version=match[1], **line.origin)


RULES: tuple[Rule, ...] = (
    Rule(
        "deepspeed.report",
        (b"torch version", b"deepspeed info", b"nvcc version", b"torch cuda", b"torch hip", b"DeepSpeed info: version",
         b"Git info for Megatron"),
        read_versions,
    ),
)  # fmt: skip
