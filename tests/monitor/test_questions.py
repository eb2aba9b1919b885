"""Questions to a thread of their own."""

from megatron_monitor.system.asking import Asking


def test_a_stop_while_the_thread_takes_the_last_question() -> None:
    """The thread may take it between a look at the queue and the taking."""
    asking = Asking[int, int]("race", lambda question: question, lambda *_: -1, 0)
    asking.ask(1)
    assert asking.wait(10.0) == 1
    asking._questions.empty = lambda: False  # type: ignore[method-assign]
    asking.stop()
