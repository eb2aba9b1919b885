"""Questions answered one after the other on a thread of its own: what may hang stops nobody but it."""

import logging
import queue
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")

_log = logging.getLogger(__name__)


class Asking(Generic[Question, Answer]):
    """Started with the first question; `stop` leaves a call that hangs behind."""

    def __init__(
        self,
        name: str,
        answer: Callable[[Question], Answer],
        failed: Callable[[Question, Exception | None], Answer],
        waiting: int,
        answered: Callable[[], None] = lambda: None,
    ) -> None:
        """`failed` is the answer where `answer` raised, or, with None, where more than `waiting` questions wait (0: any
        number may). `answered` is called in the thread after each answer.
        """
        self._name, self._answer, self._failed = name, answer, failed
        self._questions: queue.Queue[Question | None] = queue.Queue(waiting)
        self._answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
        self._answered = answered
        self._thread: threading.Thread | None = None

    def ask(self, question: Question) -> None:
        """To be answered when its turn comes."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        try:
            self._questions.put_nowait(question)
        except queue.Full:
            self._answers.put(self._failed(question, None))

    def answers(self) -> list[Answer]:
        """Those since the last call."""
        taken: list[Answer] = []
        while not self._answers.empty():
            taken.append(self._answers.get_nowait())
        return taken

    def wait(self, seconds: float) -> Answer | None:
        """The next answer, if it comes within so many seconds."""
        try:
            return self._answers.get(timeout=seconds)
        except queue.Empty:
            return None

    def stop(self) -> None:
        """End the thread after the call that it is in; nobody waits for that."""
        while not self._questions.empty():
            self._questions.get_nowait()
        if self._thread is not None:
            self._questions.put_nowait(None)

    def end(self, seconds: float) -> None:
        """End the thread when all is answered, and wait so many seconds for that."""
        if self._thread is not None:
            self._questions.put_nowait(None)
            self._thread.join(seconds)

    def _run(self) -> None:
        while (question := self._questions.get()) is not None:
            try:
                answer = self._answer(question)
            except Exception as error:  # noqa: BLE001 - a bug here must neither end the thread nor leave a run waiting
                _log.exception("%s: %r", self._name, question)
                answer = self._failed(question, error)
            self._answers.put(answer)
            self._answered()
