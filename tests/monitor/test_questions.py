"""Questions to a thread of their own."""

import threading

from megatron_monitor.system.asking import Asking


def test_a_stop_while_the_thread_takes_the_last_question() -> None:
    """The thread may take it between a look at the queue and the taking."""
    asking = Asking[int, int]("race", lambda question: question, lambda *_: -1, 0)
    asking.ask(1)
    assert asking.wait(10.0) == 1
    asking._questions.empty = lambda: False  # type: ignore[method-assign]
    asking.stop()


def test_the_newest_takes_the_place_of_those_that_wait() -> None:
    """The question that is being answered is answered."""
    begun, free = threading.Event(), threading.Event()

    def answer(question: int) -> int:
        begun.set()
        assert free.wait(10.0)
        return question

    asking = Asking[int, int]("newest", answer, lambda *_: -1, 0)
    asking.ask(1)
    assert begun.wait(10.0)
    for question in (2, 3):
        asking.ask_instead(question)
    free.set()
    asking.end(10.0)
    assert asking.answers() == [1, 3]
