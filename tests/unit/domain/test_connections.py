"""Only the newest connection of a producer is listened to: by example, and with a client that gives connections up
while its requests are still on their way, at several gateways."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import connections
from gateway.domain.connections import NewestConnections, RequestKind, Speaker, StaleConnection

PRODUCE, COMMIT_OFFSETS = RequestKind.PRODUCE, RequestKind.COMMIT_OFFSETS


def test_the_newest_connection_is_heard_as_often_as_it_speaks() -> None:
    newest = NewestConnections(gateway=1)
    for connection in (1, 1, 4, 4, 9):
        newest.hear(PRODUCE, producer_id=7, connection=connection)


def test_an_older_connection_is_refused_once_a_newer_one_spoke() -> None:
    newest = NewestConnections(gateway=1)
    newest.hear(PRODUCE, producer_id=7, connection=3)
    newest.hear(PRODUCE, producer_id=7, connection=5)
    for _ in range(2):
        with pytest.raises(StaleConnection):
            newest.hear(PRODUCE, producer_id=7, connection=3)
    newest.hear(PRODUCE, producer_id=7, connection=5)


def test_producers_and_kinds_of_requests_have_connections_of_their_own() -> None:
    newest = NewestConnections(gateway=1)
    newest.hear(PRODUCE, producer_id=7, connection=5)
    newest.hear(PRODUCE, producer_id=8, connection=3)
    newest.hear(COMMIT_OFFSETS, producer_id=7, connection=4)


def test_memory_is_bounded_and_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "MAX_REMEMBERED", 10)
    newest = NewestConnections(gateway=1)
    for producer_id in range(11):
        newest.hear(PRODUCE, producer_id=producer_id, connection=5)
    newest.hear(PRODUCE, producer_id=0, connection=3)  # forgotten
    with pytest.raises(StaleConnection):
        newest.hear(PRODUCE, producer_id=10, connection=3)


def test_connections_are_numbered_as_they_are_accepted() -> None:
    newest = NewestConnections(gateway=1)
    assert [newest.accept() for _ in range(3)] == [1, 2, 3]


def test_whoever_speaks_first_is_the_speaker() -> None:
    here = NewestConnections(gateway=1)
    connection = here.accept()
    speaker = here.decide_speaker(None, producer_id=7, connection=connection)
    assert speaker == Speaker(1, connection)
    assert here.decide_speaker(speaker, producer_id=7, connection=connection) == speaker


def test_a_newer_connection_of_the_same_gateway_takes_over_and_an_older_one_cannot() -> None:
    here = NewestConnections(gateway=1)
    older, newer = here.accept(), here.accept()
    speaker = here.decide_speaker(Speaker(1, older), producer_id=7, connection=newer)
    assert speaker == Speaker(1, newer)
    with pytest.raises(StaleConnection):
        here.decide_speaker(speaker, producer_id=7, connection=older)


def test_a_connection_that_was_there_before_cannot_take_over_from_another_gateway() -> None:
    here, there = NewestConnections(gateway=1), Speaker(2, 40)
    before = [here.accept(), here.accept()]
    for connection in (*before, *before):
        with pytest.raises(StaleConnection):
            here.decide_speaker(there, producer_id=7, connection=connection)
    assert here.decide_speaker(there, producer_id=7, connection=(after := here.accept())) == Speaker(1, after)


def test_what_was_seen_of_an_earlier_speaker_says_nothing_of_a_later_one() -> None:
    here = NewestConnections(gateway=1)
    with pytest.raises(StaleConnection):
        here.decide_speaker(Speaker(2, 40), producer_id=7, connection=here.accept())
    between = here.accept()
    with pytest.raises(StaleConnection):
        here.decide_speaker(Speaker(2, 41), producer_id=7, connection=between)
    with pytest.raises(StaleConnection):
        here.decide_speaker(Speaker(2, 41), producer_id=7, connection=between)
    assert here.decide_speaker(Speaker(2, 41), producer_id=7, connection=here.accept()).gateway == 1


def test_a_restarted_gateway_is_another_one() -> None:
    before, after = NewestConnections(gateway=1), NewestConnections(gateway=2)
    speaker = before.decide_speaker(None, producer_id=7, connection=before.accept())
    with pytest.raises(StaleConnection):
        after.decide_speaker(speaker, producer_id=7, connection=after.accept())
    assert after.decide_speaker(speaker, producer_id=7, connection=after.accept()) == Speaker(2, 2)


# --- a client among gateways -----------------------------------------------------------------


@dataclass
class Link:
    """A connection; the gateway has accepted it before the client says anything over it, as every client's first
    request (ApiVersions) makes sure."""

    gateway: int
    number: int
    held: list[int] = field(default_factory=list)  # requests on their way


class Client:
    """Numbers its requests, and sends them again over a new connection when the old one is closed."""

    def __init__(self, gateways: int) -> None:
        self.gateways = [NewestConnections(gateway=100 + index) for index in range(gateways)]
        self.speaker: Speaker | None = None  # as the transaction's row has it
        self.link: Link | None = None
        self.given_up: list[Link] = []
        self.request = 0
        self.done: list[int] = []

    def open(self, gateway: int) -> Link:
        self.link = Link(gateway, self.gateways[gateway].accept())
        return self.link

    def give_up(self) -> None:
        if self.link is not None:
            self.given_up.append(self.link)
            self.link = None

    def deliver(self, link: Link, request: int) -> bool:
        """What the gateway does when the request arrives at last; whether it was listened to."""
        try:
            self.speaker = self.gateways[link.gateway].decide_speaker(
                self.speaker, producer_id=7, connection=link.number
            )
        except StaleConnection:
            return False
        self.done.append(request)
        return True

    def speak(self, gateway: int) -> None:
        """A new request, which goes through after two connections at most."""
        self.request += 1
        for _ in range(3):
            if self.link is None or self.link.gateway != gateway:
                self.give_up()
                self.open(gateway)
            assert self.link is not None
            if self.deliver(self.link, self.request):
                return
            self.link = None  # closed by the gateway
        raise AssertionError("the client is not listened to")

    def send_and_hang(self, gateway: int) -> None:
        """The request stays in the network, and the client gives its connection up."""
        self.request += 1
        if self.link is None or self.link.gateway != gateway:
            self.give_up()
            self.open(gateway)
        assert self.link is not None
        self.link.held.append(self.request)
        self.give_up()

    def arrive_late(self, choice: int) -> None:
        late = [link for link in self.given_up if link.held]
        if late:
            link = late[choice % len(late)]
            request = link.held.pop(0)
            has_moved_on = any(done > request for done in self.done)
            assert not (self.deliver(link, request) and has_moved_on), "a request of an earlier transaction got through"


STEPS = st.lists(st.tuples(st.sampled_from(["speak", "send_and_hang", "arrive_late"]), st.integers(0, 2)), max_size=40)


@settings(max_examples=500, deadline=None)
@given(gateways=st.integers(1, 3), steps=STEPS)
def test_what_was_given_up_never_gets_through_after_the_client_moved_on(
    gateways: int, steps: list[tuple[str, int]]
) -> None:
    client = Client(gateways)
    for step, number in steps:
        if step == "arrive_late":
            client.arrive_late(number)
        else:
            getattr(client, step)(number % gateways)
