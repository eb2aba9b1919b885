"""Answers questions one after the other on a separate thread, so that a call that hangs blocks only that thread."""

import logging
import queue
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)


class Asking(Generic[Question, Answer]):
    """A thread that starts with the first question. `stop` does not wait for a call that hangs."""

    def __init__(
        self,
        name: str,
        answer: Callable[[Question], Answer],
        failed: Callable[[Question, Exception | None], Answer],
        waiting: int,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` makes the answer if `answer` raised, or, with None, if more than `waiting` questions wait (0: no
        limit). `answered` is called in the thread after each answer.
        """
        self._name, self._answer, self._failed = name, answer, failed
        self._questions: queue.Queue[Question | None] = queue.Queue(waiting)
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._answered = answered
        self._thread: threading.Thread | None = None

    def ask(self, question: Question) -> None:
        """Add a question to the queue."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            self._questions.put_nowait(question)
        except queue.Full:
            self._answers.put(self._failed(question, None))

    def ask_instead(self, question: Question) -> None:
        """Add a question in place of all that wait."""
        self._drop_waiting()
        self.ask(question)

    def answers(self) -> list[Answer]:
        """Return the answers since the last call."""
        taken: list[Answer] = []
        while not self._answers.empty():
            taken.append(self._answers.get_nowait())
        return taken

    def wait(self, seconds: float) -> Answer | None:
        """Return the next answer, or None if it does not come within so many seconds."""
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            return None

    def stop(self) -> None:
        """Let the thread end after its current call, without waiting for it."""
        self._drop_waiting()
        if self._thread is not None:
            self._questions.put_nowait(None)

    def _drop_waiting(self) -> None:
        with suppress(queue.Empty):  # the thread takes questions meanwhile
            while True:
                self._questions.get_nowait()

    def end(self, seconds: float) -> None:
        """Let the thread end after all questions are answered, and wait at most so many seconds."""
        if self._thread is not None:
            self._questions.put_nowait(None)
            self._thread.join(seconds)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            try:
                answer = self._answer(question)
            except Exception as error:  # noqa: BLE001 - a bug must neither end the thread nor leave a run without an answer
                _log.exception("%s: %r", self._name, question)
                answer = self._failed(question, error)
            self._answers.put(answer)
            self._answered()
