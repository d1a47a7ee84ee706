"""What a commit looks up is found at once by any index that its plan may use.

A session keeps the plans that it made when a table was nearly empty, for which all indexes cost the same. One of topic
and partition alone looks through all producers of the partition for each of them, one of when open transactions began
through all of those, until the table is analyzed. Now each of them holds the whole key.

Locks: access exclusive on producer_sequences, transactions and transaction_partitions while an index is built.
"""

from __future__ import annotations

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

INDEXES = """
DROP INDEX kafka.producer_sequences_partition;
CREATE INDEX producer_sequences_partition ON kafka.producer_sequences (topic_id, partition_id, producer_id);

DROP INDEX kafka.transaction_partitions_partition;
CREATE INDEX transaction_partitions_partition ON kafka.transaction_partitions (topic_id, partition, producer_id);

DROP INDEX kafka.transactions_open;
CREATE INDEX transactions_open ON kafka.transactions (producer_id) WHERE state = 'Ongoing';
"""


def upgrade() -> None:
    op.execute(INDEXES)
