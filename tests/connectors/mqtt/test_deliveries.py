"""Which messages of an MQTT session are new, and which are acknowledged when."""

import random

import pytest

from penstock.connectors.mqtt.deliveries import Deliveries, Delivery


def test_a_message_is_acknowledged_when_a_snapshot_contains_it():
    session = Deliveries(count=10)
    assert [session.receive(id, 0, again=False) for id in (1, 2, 3)] == [Delivery.NEW] * 3
    assert session.complete(10) == []
    assert session.complete(12) == [1, 2]
    assert session.complete(12) == []
    assert session.complete(13) == [3]
    assert len(session) == 0


def test_a_message_that_needs_no_acknowledgement_has_a_number_too():
    session = Deliveries()
    session.receive(0, 0, again=False)
    session.receive(7, 0, again=False)
    assert session.complete(1) == []
    assert session.complete(2) == [7]


def test_a_message_that_comes_again_after_a_reconnect_is_held_once():
    session = Deliveries()
    session.receive(1, 11, again=False)
    session.receive(2, 22, again=False)
    session.disconnect()
    assert session.complete(1) == [], "nothing can be acknowledged without a connection"
    assert session.connect(resumed=True) == 0
    assert session.receive(1, 11, again=True) is Delivery.COMPLETE
    assert session.receive(2, 22, again=True) is Delivery.HELD
    assert session.receive(3, 33, again=False) is Delivery.NEW
    assert session.complete(3) == [2, 3]


@pytest.mark.parametrize(("digest", "again"), [(12, True), (11, False)])
def test_another_message_with_the_packet_id_of_an_old_one_is_new(digest: int, again: bool):
    session = Deliveries()
    session.receive(1, 11, again=False)
    session.connect(resumed=True)
    assert session.receive(1, digest, again=again) is Delivery.NEW
    assert session.complete(2) == [1]


def test_a_lost_session_forgets_packet_ids_and_says_how_many_messages_are_at_risk():
    session = Deliveries()
    for id in (1, 2, 3):
        session.receive(id, id, again=False)
    session.disconnect()
    session.complete(1)
    assert session.connect(resumed=False) == 2
    assert session.receive(1, 1, again=True) is Delivery.NEW
    assert session.complete(3) == [], "the packet id is that of another message now"
    assert session.complete(4) == [1]


class Broker:
    """A session as a broker keeps it: what is not acknowledged is sent again, in order."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.published = 0
        self.unacknowledged: dict[int, int] = {}
        self.unsent: list[int] = []

    def publish(self) -> None:
        free = [id for id in range(1, 9) if id not in self.unacknowledged]
        if free:
            self.published += 1
            self.unacknowledged[self.rng.choice(free)] = self.published

    def connect(self) -> None:
        self.unsent = list(self.unacknowledged)


@pytest.mark.parametrize("seed", range(200))
def test_whatever_breaks_nothing_is_lost_and_nothing_doubled_while_the_process_lives(seed: int):
    rng = random.Random(seed)
    broker, session = Broker(rng), Deliveries()
    sent: set[int] = set()
    received: list[int] = []
    in_snapshot = [0]
    lost_acknowledgements = 0
    for _ in range(300):
        match rng.randrange(6):
            case 0 | 1:
                broker.publish()
                new = [id for id, number in broker.unacknowledged.items() if number not in sent]
                broker.unsent += [id for id in new if id not in broker.unsent]
            case 2 | 3:
                while broker.unsent and rng.random() < 0.8:
                    id = broker.unsent.pop(0)
                    number = broker.unacknowledged[id]
                    delivery = session.receive(id, number, again=number in sent)
                    sent.add(number)
                    if delivery is Delivery.NEW:
                        received.append(number)
                    elif delivery is Delivery.COMPLETE:
                        del broker.unacknowledged[id]
            case 4:
                for id in session.complete(rng.choice([session.count, *in_snapshot])):
                    if rng.random() < 0.9:
                        assert broker.unacknowledged.pop(id) in received
                    else:
                        lost_acknowledgements += 1
                in_snapshot.append(session.count)
            case 5:
                # A message that is lost on the way has been sent, as far as the broker knows.
                sent |= {broker.unacknowledged[id] for id in broker.unsent if rng.random() < 0.5}
                session.disconnect()
                broker.connect()
                session.connect(resumed=True)
    waiting = {broker.unacknowledged[id] for id in broker.unsent}
    assert set(received) | waiting >= set(range(1, broker.published + 1)) & (sent | waiting)
    # Only a lost acknowledgement doubles: the broker may have used the packet id again.
    assert len(received) - len(set(received)) <= lost_acknowledgements
