"""Rendezvous hashing: the same answer everywhere, little moves, everybody gets a share."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.domain.placement import choose_node, choose_partition_leader

keys = st.text(max_size=20)
clusters = st.sets(st.integers(0, 2**31 - 1), min_size=1, max_size=8)


@given(key=keys, nodes=clusters, order=st.randoms())
def test_the_order_in_which_gateways_are_known_does_not_matter(key: str, nodes: set[int], order: st.Random) -> None:
    shuffled = list(nodes)
    order.shuffle(shuffled)
    chosen = choose_node(key, tuple(shuffled))
    assert chosen in nodes
    assert chosen == choose_node(key, tuple(sorted(nodes)))


@given(key=keys, nodes=clusters, newcomer=st.integers(0, 2**31 - 1))
def test_who_comes_takes_its_share_and_nothing_else_moves(key: str, nodes: set[int], newcomer: int) -> None:
    before = choose_node(key, tuple(sorted(nodes)))
    after = choose_node(key, tuple(sorted(nodes | {newcomer})))
    assert after in (before, newcomer)


@given(key=keys, nodes=clusters.filter(lambda some: len(some) > 1), data=st.data())
def test_who_goes_leaves_the_others_what_they_had(key: str, nodes: set[int], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(nodes)))
    before = choose_node(key, tuple(sorted(nodes)))
    after = choose_node(key, tuple(sorted(nodes - {gone})))
    assert after == before or before == gone


@given(nodes=st.sets(st.integers(0, 10_000), min_size=2, max_size=6), topic_id=st.integers(1, 1000))
def test_everybody_gets_a_fair_share(nodes: set[int], topic_id: int) -> None:
    node_ids = tuple(sorted(nodes))
    count = 300 * len(nodes)
    shares = Counter(
        choose_partition_leader(topic_id=topic_id, partition=partition, node_ids=node_ids) for partition in range(count)
    )
    assert set(shares) == nodes
    # Six standard deviations of a fair lot: 300 ± 104 at most.
    assert all(190 < share < 410 for share in shares.values()), shares


@pytest.mark.parametrize(
    ("key", "chosen"), [("", 2), ("orders", 3), ("payments", 2), ("7/0", 1), ("7/1", 2), ("\ud800", 2)]
)
def test_answers_stay_the_same_over_versions(key: str, chosen: int) -> None:
    """Gateways of two versions run side by side during an upgrade and must agree."""
    assert choose_node(key, (1, 2, 3)) == chosen


def test_a_single_gateway_has_everything() -> None:
    assert choose_partition_leader(topic_id=1, partition=0, node_ids=(5,)) == 5
