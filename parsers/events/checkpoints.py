"""Saves and loads."""

from typing import ClassVar

from parsers.events.base import Event


class CheckpointSaveStarted(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "checkpoint_save_started"

    iteration: int | None = None
    path: str | None = None


class CheckpointSaved(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "checkpoint_saved"

    iteration: int | None = None
    path: str | None = None
    seconds: float | None = None


class CheckpointSaveScheduled(Event, frozen=True, kw_only=True, gc=False):
    """An asynchronous save was handed over: its success may come many iterations later."""

    kind: ClassVar[str] = "checkpoint_save_scheduled"

    iteration: int | None = None
    path: str | None = None


class CheckpointFileWritten(Event, frozen=True, kw_only=True, gc=False):
    """DeepSpeed writing or having written one file of a checkpoint: progress while saving."""

    kind: ClassVar[str] = "checkpoint_file"

    iteration: int | None = None
    path: str | None = None
    finished: bool = False


class CheckpointLoadStarted(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "checkpoint_load_started"

    iteration: int | None = None
    path: str | None = None


class CheckpointLoaded(Event, frozen=True, kw_only=True, gc=False):
    kind: ClassVar[str] = "checkpoint_loaded"

    iteration: int | None = None
    path: str | None = None


class CheckpointNotFound(Event, frozen=True, kw_only=True, gc=False):
    """The run starts from random weights."""

    kind: ClassVar[str] = "checkpoint_not_found"

    path: str | None = None
