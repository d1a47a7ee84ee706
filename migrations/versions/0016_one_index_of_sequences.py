"""What producers wrote last is found by one index, whichever plan a session made when the table was small.

With two, a plan for a nearly empty table took the one of partitions, and read what all producers wrote there to find
each of them, until the table was analyzed. Topic and partition come first: deleting a topic and describing a partition
look for them.

Locks: access exclusive on producer_sequences while its index is built.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

INDEX = """
DROP INDEX kafka.producer_sequences_partition;
ALTER TABLE kafka.producer_sequences
    DROP CONSTRAINT producer_sequences_pkey,
    ADD CONSTRAINT producer_sequences_pkey PRIMARY KEY (topic_id, partition_id, producer_id);
"""


def upgrade() -> None:
    op.execute(INDEX)
