"""Producers: the newest five batches as text, without what follows from the rest.

A commit gives them for each producer. As a list of integers, twenty numbers had to be read, and stored at their full
width; the sequences follow from the last one and how many records each batch has. Gateways of the version before are
stopped first.

Locks: ACCESS EXCLUSIVE on producer_sequences, which has a row per live producer and partition; each is updated.
"""

from __future__ import annotations

from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None

# From the first of the batches to the last no sequence is missing: by that rule they were accepted.
TABLE = """
ALTER TABLE kafka.producer_sequences ADD COLUMN newest text;

UPDATE kafka.producer_sequences SET newest = (
    SELECT coalesce(string_agg(concat_ws(':', batches[i + 2], ((batches[i + 1] - batches[i]) & 2147483647) + 1,
                                         batches[i + 3]), ' ' ORDER BY i), '')
    FROM generate_series(1, cardinality(batches), 4) AS i);

CREATE OR REPLACE VIEW kafka.producer_state AS
SELECT s.producer_id, p.client_id, p.transactional_id, t.name AS topic, s.partition_id AS partition,
       s.producer_epoch, s.last_sequence,
       (SELECT jsonb_agg(jsonb_build_object(
            'first_sequence', (s.last_sequence - b.from_first + 1) & 2147483647,
            'last_sequence', (s.last_sequence - b.from_first + b.record_count) & 2147483647,
            'base_offset', b.base_offset,
            'timestamp', timestamptz 'epoch' + b.timestamp_ms * interval '1 millisecond') ORDER BY b.place)
        FROM (SELECT place, split_part(batch, ':', 1)::bigint AS base_offset,
                     split_part(batch, ':', 2)::bigint AS record_count,
                     split_part(batch, ':', 3)::bigint AS timestamp_ms,
                     sum(split_part(batch, ':', 2)::bigint) OVER (ORDER BY place DESC)::bigint AS from_first
              FROM string_to_table(s.newest, ' ') WITH ORDINALITY AS n (batch, place)) AS b) AS batches,
       s.updated_at, now() - s.updated_at AS age
FROM kafka.producer_sequences s
JOIN kafka.topics t USING (topic_id)
LEFT JOIN kafka.producer_ids p USING (producer_id);

ALTER TABLE kafka.producer_sequences DROP COLUMN batches;
ALTER TABLE kafka.producer_sequences RENAME COLUMN newest TO batches;
ALTER TABLE kafka.producer_sequences ALTER COLUMN batches SET NOT NULL;
ALTER TYPE kafka.remembered_producer ALTER ATTRIBUTE batches SET DATA TYPE text;

COMMENT ON COLUMN kafka.producer_sequences.batches IS 'The newest five batches, oldest first and separated by spaces, '
    'of each offset:records:timestamp: offset of the first record (what a retry is answered), how many, and the '
    'largest timestamp in milliseconds. Their sequences end with last_sequence.';
"""


def upgrade() -> None:
    op.execute(TABLE)
