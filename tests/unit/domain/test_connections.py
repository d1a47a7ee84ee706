"""Only the newest connection of a producer is listened to: by example, and with a client that gives connections up
while its requests are still on their way, at several gateways."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.domain import connections
from gateway.domain.connections import NewestConnections, RequestKind, Speaker, Spoken, StaleConnection

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


def spoken(speaker: Speaker | None, updated_at_us: int = 0) -> Spoken:
    return Spoken(7, speaker, updated_at_us)


def test_whoever_speaks_first_is_the_speaker() -> None:
    here = NewestConnections(gateway=1)
    connection = here.accept()
    speaker = here.decide_speaker(spoken(None), connection=connection)
    assert speaker == Speaker(1, connection)
    assert here.decide_speaker(spoken(speaker), connection=connection) == speaker


def test_a_newer_connection_of_the_same_gateway_takes_over_and_an_older_one_cannot() -> None:
    here = NewestConnections(gateway=1)
    older, newer = here.accept(), here.accept()
    speaker = here.decide_speaker(spoken(Speaker(1, older)), connection=newer)
    assert speaker == Speaker(1, newer)
    with pytest.raises(StaleConnection):
        here.decide_speaker(spoken(speaker), connection=older)


def test_a_connection_that_was_there_before_cannot_take_over_from_another_gateway() -> None:
    here, there = NewestConnections(gateway=1), spoken(Speaker(2, 40))
    before = [here.accept(), here.accept()]
    for connection in (*before, *before):
        with pytest.raises(StaleConnection):
            here.decide_speaker(there, connection=connection)
    assert here.decide_speaker(there, connection=(after := here.accept())) == Speaker(1, after)


@pytest.mark.parametrize("later", [spoken(Speaker(2, 41), 0), spoken(Speaker(2, 40), 1)], ids=["speaker", "time"])
def test_what_was_seen_of_an_earlier_state_says_nothing_of_a_later_one(later: Spoken) -> None:
    """Another connection speaks, or the same one began or ended something since."""
    here = NewestConnections(gateway=1)
    here.read(spoken(Speaker(2, 40), 0))
    between = here.accept()
    for _ in range(2):
        with pytest.raises(StaleConnection):
            here.decide_speaker(later, connection=between)
    assert here.decide_speaker(later, connection=here.accept()).gateway == 1


def test_a_restarted_gateway_that_has_read_who_spoke_listens_to_the_first_connection() -> None:
    before, after = NewestConnections(gateway=1), NewestConnections(gateway=2)
    speaker = before.decide_speaker(spoken(None), connection=before.accept())
    after.read(spoken(speaker))
    assert after.decide_speaker(spoken(speaker), connection=after.accept()) == Speaker(2, 1)


def test_a_restarted_gateway_that_has_not_read_it_listens_to_the_second_one() -> None:
    before, after = NewestConnections(gateway=1), NewestConnections(gateway=2)
    speaker = before.decide_speaker(spoken(None), connection=before.accept())
    with pytest.raises(StaleConnection):
        after.decide_speaker(spoken(speaker), connection=after.accept())
    assert after.decide_speaker(spoken(speaker), connection=after.accept()) == Speaker(2, 2)


def test_reading_the_same_again_does_not_make_connections_old() -> None:
    here, there = NewestConnections(gateway=1), spoken(Speaker(2, 40))
    here.read(there)
    connection = here.accept()
    here.read(there)
    assert here.decide_speaker(there, connection=connection) == Speaker(1, connection)


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
        self.row = Spoken(7, None, 0)  # of the transaction
        self.left_open: dict[int, Link] = {}
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

    def go_to(self, gateway: int) -> Link:
        """Over the connection that is open there, or a new one; the old one is not closed, as Java's is not."""
        if self.link is None or self.link.gateway != gateway:
            if self.link is not None:
                self.left_open[self.link.gateway] = self.link
            self.link = self.left_open.pop(gateway, None) or self.open(gateway)
        return self.link

    def expect(self, gateway: int) -> None:
        """The gateway reads the row, as for FindCoordinator."""
        self.gateways[gateway].read(self.row)

    def deliver(self, link: Link, request: int) -> bool:
        """What the gateway does when the request arrives at last; whether it was listened to."""
        try:
            speaker = self.gateways[link.gateway].decide_speaker(self.row, connection=link.number)
        except StaleConnection:
            return False
        self.row = Spoken(7, speaker, self.row.updated_at_us + 1)
        self.done.append(request)
        return True

    def speak(self, gateway: int) -> None:
        """A new request, which goes through after two connections at most."""
        self.request += 1
        for _ in range(3):
            if self.deliver(self.go_to(gateway), self.request):
                return
            self.link = None  # closed by the gateway
        raise AssertionError("the client is not listened to")

    def send_and_hang(self, gateway: int) -> None:
        """The request stays in the network, and the client gives its connection up."""
        self.request += 1
        self.go_to(gateway).held.append(self.request)
        self.give_up()

    def arrive_late(self, choice: int) -> None:
        late = [link for link in self.given_up if link.held]
        if late:
            link = late[choice % len(late)]
            request = link.held.pop(0)
            has_moved_on = any(done > request for done in self.done)
            assert not (self.deliver(link, request) and has_moved_on), "a request of an earlier transaction got through"


STEPS = st.lists(
    st.tuples(st.sampled_from(["speak", "send_and_hang", "arrive_late", "expect"]), st.integers(0, 2)), max_size=40
)


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
