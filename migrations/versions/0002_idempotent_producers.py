"""Idempotent producers: what each wrote last to each partition, and a view to see it.

Locks: access exclusive on kafka.partitions for an instant (a column is added without a rewrite); else new objects.
"""

from __future__ import annotations

from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

TABLES = """
ALTER TABLE kafka.partitions ADD COLUMN producers_dropped_at timestamptz;

-- Upserted by every commit of an idempotent producer: room on the page keeps those updates HOT.
CREATE TABLE kafka.producer_sequences (
    producer_id bigint NOT NULL,
    run_length bigint NOT NULL,
    updated_at timestamptz NOT NULL DEFAULT now(),
    topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition_id integer NOT NULL,
    last_sequence integer NOT NULL,
    producer_epoch smallint NOT NULL,
    first_sequences integer[] NOT NULL,
    last_sequences integer[] NOT NULL,
    base_offsets bigint[] NOT NULL,
    timestamps_ms bigint[] NOT NULL,
    PRIMARY KEY (producer_id, topic_id, partition_id)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX producer_sequences_partition ON kafka.producer_sequences (topic_id, partition_id);

CREATE TABLE kafka.deleted_topics (
    name text COLLATE "C" PRIMARY KEY,
    deleted_at timestamptz NOT NULL DEFAULT now()
);

CREATE VIEW kafka.producer_state AS
SELECT s.producer_id, p.client_id, p.transactional_id, t.name AS topic, s.partition_id AS partition,
       s.producer_epoch, s.last_sequence,
       (SELECT jsonb_agg(jsonb_build_object(
            'first_sequence', b.first_sequence, 'last_sequence', b.last_sequence, 'base_offset', b.base_offset,
            'timestamp', timestamptz 'epoch' + b.timestamp_ms * interval '1 millisecond') ORDER BY b.position)
        FROM unnest(s.first_sequences, s.last_sequences, s.base_offsets, s.timestamps_ms)
             WITH ORDINALITY AS b (first_sequence, last_sequence, base_offset, timestamp_ms, position)) AS batches,
       s.updated_at, now() - s.updated_at AS age
FROM kafka.producer_sequences s
JOIN kafka.topics t USING (topic_id)
LEFT JOIN kafka.producer_ids p USING (producer_id);
"""

COMMENTS = {
    "COLUMN kafka.partitions.producers_dropped_at": "When states of producers were last dropped from this partition; "
    "a producer older than that may start with any sequence.",
    "TABLE kafka.producer_sequences": "What each idempotent producer last wrote to each partition. "
    "See kafka.producer_state.",
    "COLUMN kafka.producer_sequences.producer_id": "The producer, see kafka.producer_ids.",
    "COLUMN kafka.producer_sequences.run_length": "How many records in a row up to last_sequence are known to "
    "be written.",
    "COLUMN kafka.producer_sequences.updated_at": "When the producer last wrote here.",
    "COLUMN kafka.producer_sequences.topic_id": "The topic, see kafka.topics.",
    "COLUMN kafka.producer_sequences.partition_id": "Partition number.",
    "COLUMN kafka.producer_sequences.last_sequence": "Sequence number of the last record written.",
    "COLUMN kafka.producer_sequences.producer_epoch": "The epoch it was written in; older ones are refused.",
    "COLUMN kafka.producer_sequences.first_sequences": "First sequence of each of the newest five batches, oldest "
    "first.",
    "COLUMN kafka.producer_sequences.last_sequences": "Last sequence of each of them.",
    "COLUMN kafka.producer_sequences.base_offsets": "Offset of the first record of each of them: what a retry is "
    "answered.",
    "COLUMN kafka.producer_sequences.timestamps_ms": "Largest timestamp of each of them, in milliseconds since 1970.",
    "TABLE kafka.deleted_topics": "Names that topics had not long ago: producers of such a topic number on if it is "
    "created anew.",
    "COLUMN kafka.deleted_topics.name": "The name.",
    "COLUMN kafka.deleted_topics.deleted_at": "When a topic of that name was last deleted.",
    "VIEW kafka.producer_state": "Who writes where: epoch, last sequence, the newest five batches, and how long ago.",
    "COLUMN kafka.producer_state.producer_id": "The producer, see kafka.producer_ids.",
    "COLUMN kafka.producer_state.client_id": "client.id of the producer.",
    "COLUMN kafka.producer_state.transactional_id": "transactional.id; null for a producer that is only idempotent.",
    "COLUMN kafka.producer_state.topic": "The topic's name.",
    "COLUMN kafka.producer_state.partition": "Partition number.",
    "COLUMN kafka.producer_state.producer_epoch": "The epoch it last wrote in.",
    "COLUMN kafka.producer_state.last_sequence": "Sequence number of the last record written.",
    "COLUMN kafka.producer_state.batches": "The newest five batches: sequences, offset and timestamp, oldest first.",
    "COLUMN kafka.producer_state.updated_at": "When it last wrote here.",
    "COLUMN kafka.producer_state.age": "How long ago that was.",
}

GRANTS = """
DO $grants$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_gateway') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON kafka.producer_sequences, kafka.deleted_topics, kafka.producer_state
            TO tablewire_gateway;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_reader') THEN
        GRANT SELECT ON kafka.producer_state TO tablewire_reader;
    END IF;
END
$grants$;
"""


def upgrade() -> None:
    op.execute(TABLES)
    for target, text in COMMENTS.items():
        quoted = text.replace("'", "''")
        op.execute(f"COMMENT ON {target} IS '{quoted}'")
    op.execute(GRANTS)


def downgrade() -> None:
    op.execute("DROP VIEW kafka.producer_state")
    op.execute("DROP TABLE kafka.producer_sequences, kafka.deleted_topics")
    op.execute("ALTER TABLE kafka.partitions DROP COLUMN producers_dropped_at")
