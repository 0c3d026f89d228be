"""The queue behind the writer: one worker, in order, whoever puts and however often it is started."""

from __future__ import annotations

import threading
import time

from rl_eventlog.writer.inbox import Inbox

FULL = OSError(28, "No space left on device")


def never(error: OSError) -> None:
    raise AssertionError(error)


def test_items_are_worked_on_one_by_one_in_order_however_often_it_is_started() -> None:
    done: list[int] = []
    at_once = threading.Semaphore(1)

    def work(item: int) -> None:
        assert at_once.acquire(blocking=False), "two workers"
        time.sleep(0.0005)
        done.append(item)
        at_once.release()

    inbox: Inbox[int] = Inbox("test", work, never)
    for item in range(200):
        inbox.start()  # as a caller does that was interrupted in the middle of it
        inbox.put(item)
    assert inbox.join(None)
    assert done == list(range(200))
    assert inbox.waiting() == []


def test_what_is_refused_is_tried_again_and_told_once() -> None:
    refusals = [FULL, FULL]
    told: list[OSError] = []
    inbox: Inbox[str]
    inbox = Inbox("test", lambda _: inbox.insist(lambda: refusals.pop() if refusals else None), told.append)
    inbox.put("item")
    assert inbox.join(time.monotonic() + 30)
    assert (told, refusals, inbox.error) == ([FULL], [], None)


def test_an_impatient_join_gives_up_where_it_is_refused_and_leaves_the_item() -> None:
    full = threading.Event()
    full.set()
    inbox: Inbox[str]
    inbox = Inbox("test", lambda _: inbox.insist(lambda: FULL if full.is_set() else None), lambda _: None)
    inbox.put("item")
    assert not inbox.join(None, patient=False)
    assert inbox.error is FULL
    assert inbox.waiting() == ["item"]
    full.clear()
    assert inbox.join(time.monotonic() + 30)


def test_an_item_can_be_taken_back_until_the_worker_has_it() -> None:
    go = threading.Event()
    done: list[int] = []

    def work(item: int) -> None:
        assert go.wait(30)
        done.append(item)

    inbox: Inbox[int] = Inbox("test", work, never)
    inbox.put(1000)
    while not inbox.is_last:
        time.sleep(0.001)
    inbox.put(1001)
    inbox.put(1002)
    assert inbox.waiting() == [1000, 1001, 1002]
    assert inbox.take_back(1001)
    assert not inbox.take_back(1000)
    go.set()
    assert inbox.join(None)
    assert done == [1000, 1002]
