"""Checkpoints: saved and loaded by Megatron (checkpointing.py), written file by file by DeepSpeed's engine."""

from __future__ import annotations

import re
from collections.abc import Iterator

from parsers.engine.fields import finite
from parsers.engine.prefixes import iso_time
from parsers.engine.scan import Line, Rule
from parsers.events import (
    CheckpointFileWritten,
    CheckpointLoaded,
    CheckpointLoadStarted,
    CheckpointNotFound,
    CheckpointSaved,
    CheckpointSaveScheduled,
    CheckpointSaveStarted,
    Event,
)

_AT = r"(?:at|from) iteration[ ]{1,12}(\d{1,12})"
# `saving checkpoint at iteration    2000 to /ckpt in torch_dist format`
_SAVING = re.compile(r"\bsaving checkpoint (?:at|from) iteration[ ]{1,12}(\d{1,12})(?: to (\S{1,4000}))?")
# `  successfully saved checkpoint at iteration    2000 to /ckpt [ t 1/1, p 1/1 ]`
_SAVED = re.compile(r"successfully saved checkpoint " + _AT + r"(?: to (\S{1,4000}))?")
# `  scheduled an async checkpoint save at iteration    2000 to /ckpt`
_SCHEDULED = re.compile(r"scheduled an async checkpoint save(?:[ ]" + _AT + r")?(?: to (\S{1,4000}))?")
# ` loading checkpoint from /ckpt at iteration 5000`, ` loading distributed checkpoint from /ckpt at iteration 5000`
_LOADING = re.compile(r"\bloading (?:\w{1,20} )?checkpoint from (\S{1,4000})(?: at iteration[ ]{1,12}(\d{1,12}))?")
# `  successfully loaded checkpoint from /ckpt [ t 0, p 0 ] at iteration 5000`
_LOADED = re.compile(
    r"successfully loaded checkpoint from (\S{1,4000})(?:[ ]\[[^\]]{0,80}\])?(?: at iteration[ ]{1,12}(\d{1,12}))?"
)
# `WARNING: could not find the metadata file /ckpt/latest_checkpointed_iteration.txt `
_MISSING = re.compile(
    r"could not find the metadata file (\S{1,4000})|will not load any checkpoints and will start from random"
)
# `Saving model checkpoint: /ckpt/global_step33241/mp_rank_00_model_states.pt`
_OLD_FILE = re.compile(r"Saving model checkpoint: (\S{1,4000})")
# `[Torch] Saving /ckpt/global_step50/mp_rank_00_model_states.pt...`, `[Torch] Saved /ckpt/....pt.`
_TORCH_FILE = re.compile(r"\[(?:Torch|Fast|Nebula)\] (Saving|Saved) (\S{1,4000})")
# `[Torch] Checkpoint global_step10 is about to be saved!`, `... is ready now!`
_TAG = re.compile(r"\] Checkpoint (\S{1,200}) is (about to be saved|ready now)")
# `zero checkpoint saved /ckpt/global_step50/zero_pp_rank_1_mp_rank_00_optim_states.pt`
_ZERO = re.compile(r"zero checkpoint saved (\S{1,4000})")
# `Checkpoint Save GB: 22.1, GB/Sec: 1.2, Latency(second): 18.4`
_TIMED = re.compile(r"Checkpoint Save GB: [\d.]{1,20}, GB/Sec: [\d.]{1,20}, Latency\(second\): ([\d.]{1,20})")
_STEP = re.compile(r"global_step(\d{1,12})")
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,9})?)\]")


def _origin(line: Line) -> dict[str, object]:
    if line.origin["logged_at"] is None:
        match = _TIME.search(line.text)  # NVIDIA indents the time of `successfully saved` by two blanks
        if match:
            return {**line.origin, "logged_at": iso_time(match[1])}
    return line.origin


def _iteration(text: str | None) -> int | None:
    return int(text) if text else None


def _step(path: str) -> int | None:
    match = _STEP.search(path)
    return int(match[1]) if match else None


def read_save(line: Line) -> Iterator[Event]:
    """A save begins, ends or is handed over."""
    text, origin = line.text, _origin(line)
    if match := _SAVED.search(text):
        yield CheckpointSaved(iteration=_iteration(match[1]), path=match[2], **origin)  # type: ignore[arg-type]
    elif match := _SCHEDULED.search(text):
        yield CheckpointSaveScheduled(iteration=_iteration(match[1]), path=match[2], **origin)  # type: ignore[arg-type]
    elif match := _SAVING.search(text):
        yield CheckpointSaveStarted(iteration=_iteration(match[1]), path=match[2], **origin)  # type: ignore[arg-type]
    elif match := _TIMED.search(text):
        yield CheckpointSaved(seconds=finite(match[1]), **line.origin)


def read_load(line: Line) -> Iterator[Event]:
    """A load begins or ends, or there is nothing to load."""
    text, origin = line.text, _origin(line)
    if match := _LOADED.search(text):
        yield CheckpointLoaded(path=match[1], iteration=_iteration(match[2]), **origin)  # type: ignore[arg-type]
    elif match := _LOADING.search(text):
        yield CheckpointLoadStarted(path=match[1], iteration=_iteration(match[2]), **origin)  # type: ignore[arg-type]
    elif match := _MISSING.search(text):
        yield CheckpointNotFound(path=match[1], **line.origin)


def read_file(line: Line) -> Iterator[Event]:
    """DeepSpeed's engine writes one file of a checkpoint."""
    text = line.text
    if match := _TORCH_FILE.search(text):
        path = match[2].rstrip(".")
        yield CheckpointFileWritten(iteration=_step(path), path=path, finished=match[1] == "Saved", **line.origin)
    elif match := _TAG.search(text):
        yield CheckpointFileWritten(iteration=_step(match[1]), finished=match[2].startswith("ready"), **line.origin)
    elif match := _ZERO.search(text):
        yield CheckpointFileWritten(iteration=_step(match[1]), path=match[1], finished=True, **line.origin)
    elif match := _OLD_FILE.search(text):
        yield CheckpointFileWritten(iteration=_step(match[1]), path=match[1], **line.origin)


RULES: tuple[Rule, ...] = (
    Rule(
        "megatron.checkpoint_save",
        (b"saving checkpoint ", b"successfully saved checkpoint", b"async checkpoint save", b"Checkpoint Save GB"),
        read_save,
        templated=True,
    ),
    Rule(
        "megatron.checkpoint_load",
        (b"checkpoint from ", b"could not find the metadata file", b"will not load any checkpoints"),
        read_load,
        templated=True,
    ),
    Rule(
        "deepspeed.checkpoint_file",
        (b"Saving model checkpoint: ", b"] Saving ", b"] Saved ", b"] Checkpoint ", b"zero checkpoint saved "),
        read_file,
        templated=True,
    ),
)
