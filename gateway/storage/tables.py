"""The tables of schema `kafka` as SQLAlchemy Core, for queries whose shape varies and for Alembic's `check`.

The migrations are the truth; `alembic check` proves that this description matches them.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    ForeignKey,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    SmallInteger,
    Table,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

metadata = MetaData(schema="kafka")

TimestampTz = DateTime(timezone=True)
Now = text("now()")

cluster = Table(
    "cluster",
    metadata,
    Column("is_only_row", Boolean, CheckConstraint("is_only_row"), primary_key=True, server_default=text("true")),
    Column("cluster_uuid", Uuid, nullable=False, server_default=text("gen_random_uuid()")),
    Column("created_at", TimestampTz, nullable=False, server_default=Now),
)

topics = Table(
    "topics",
    metadata,
    Column("topic_id", Integer, Identity(always=True), primary_key=True),
    Column("topic_uuid", Uuid, nullable=False, unique=True, server_default=text("gen_random_uuid()")),
    Column("name", Text(collation="C"), nullable=False, unique=True),
    Column("partition_count", Integer, CheckConstraint("partition_count > 0"), nullable=False),
    Column("created_at", TimestampTz, nullable=False, server_default=Now),
)

topic_configs = Table(
    "topic_configs",
    metadata,
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("name", Text(collation="C"), primary_key=True),
    Column("value", Text, nullable=False),
)

broker_configs = Table(
    "broker_configs",
    metadata,
    Column("broker_id", Integer),
    Column("name", Text(collation="C"), nullable=False),
    Column("value", Text, nullable=False),
    UniqueConstraint("broker_id", "name", postgresql_nulls_not_distinct=True),
)

partitions = Table(
    "partitions",
    metadata,
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, CheckConstraint("partition >= 0"), primary_key=True),
    Column("next_offset", BigInteger, nullable=False, server_default=text("0")),
    Column("log_start_offset", BigInteger, nullable=False, server_default=text("0")),
    Column("last_stable_offset", BigInteger, nullable=False, server_default=text("0")),
    Column("max_timestamp", TimestampTz),
    Column("deleted_before_offset", BigInteger, nullable=False, server_default=text("0")),
    Column("leader_epoch", Integer, nullable=False, server_default=text("0")),
    Column("producers_dropped_at", TimestampTz),
    CheckConstraint("log_start_offset <= next_offset AND last_stable_offset <= next_offset"),
)

messages = Table(
    "messages",
    metadata,
    Column("offset", BigInteger, primary_key=True),
    Column("timestamp", TimestampTz, nullable=False),
    Column("producer_id", BigInteger),
    Column("topic_id", Integer, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("sequence", Integer),
    Column("producer_epoch", SmallInteger),
    Column("timestamp_type", SmallInteger, nullable=False),
    Column("control_type", SmallInteger),
    Column("is_transactional", Boolean, nullable=False),
    Column("key", LargeBinary),
    Column("value", LargeBinary),
    Column("header_names", ARRAY(Text)),
    Column("header_values", ARRAY(LargeBinary)),
    Index("messages_timestamp", "timestamp", postgresql_using="brin"),
    Index(
        "messages_markers",
        "topic_id",
        "partition",
        "producer_id",
        "offset",
        postgresql_where=text("control_type IS NOT NULL"),
    ),
    postgresql_partition_by="LIST (topic_id)",
)

producer_ids = Table(
    "producer_ids",
    metadata,
    Column("producer_id", BigInteger, Identity(always=True, start=1000), primary_key=True),
    Column("created_at", TimestampTz, nullable=False, server_default=Now),
    Column("last_active_at", TimestampTz, nullable=False, server_default=Now),
    Column("transaction_timeout_ms", Integer),
    Column("producer_epoch", SmallInteger, nullable=False, server_default=text("0")),
    Column("client_id", Text),
    Column("transactional_id", Text),
    Index(
        "producer_ids_transactional_id",
        "transactional_id",
        unique=True,
        postgresql_where=text("transactional_id IS NOT NULL"),
    ),
)

deleted_topics = Table(
    "deleted_topics",
    metadata,
    Column("name", Text(collation="C"), primary_key=True),
    Column("deleted_at", TimestampTz, nullable=False, server_default=Now),
)

producer_sequences = Table(
    "producer_sequences",
    metadata,
    Column("producer_id", BigInteger, primary_key=True),
    Column("run_length", BigInteger, nullable=False),
    Column("updated_at", TimestampTz, nullable=False, server_default=Now),
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("partition_id", Integer, primary_key=True),
    Column("last_sequence", Integer, nullable=False),
    Column("producer_epoch", SmallInteger, nullable=False),
    Column("batches", Text, nullable=False),
    Index("producer_sequences_partition", "topic_id", "partition_id", "producer_id"),
)

brokers = Table(
    "brokers",
    metadata,
    Column("epoch", BigInteger, Identity(always=True), nullable=False),
    Column("started_at", TimestampTz, nullable=False, server_default=Now),
    Column("heartbeat_at", TimestampTz, nullable=False, server_default=Now),
    Column("broker_id", Integer, CheckConstraint("broker_id >= 0"), primary_key=True, autoincrement=False),
    Column("port", Integer, nullable=False),
    Column("backend_pid", Integer, nullable=False),
    Column("host", Text, nullable=False),
    Column("http_address", Text),
)

groups = Table(
    "groups",
    metadata,
    Column("coordinator_epoch", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at", TimestampTz, nullable=False, server_default=Now),
    Column("state_changed_at", TimestampTz, nullable=False, server_default=Now),
    Column("coordinator_id", Integer),
    Column("generation", Integer, nullable=False, server_default=text("0")),
    Column("assignment_epoch", Integer, nullable=False, server_default=text("0")),
    Column("group_id", Text(collation="C"), primary_key=True),
    Column(
        "group_type",
        Text,
        CheckConstraint("group_type IN ('classic', 'consumer')"),
        nullable=False,
        server_default=text("'classic'"),
    ),
    Column("state", Text, nullable=False, server_default=text("'Empty'")),
    Column("protocol_type", Text),
    Column("protocol_name", Text),
    Column("leader_id", Text),
)

group_members = Table(
    "group_members",
    metadata,
    Column("joined_at", TimestampTz, nullable=False, server_default=Now),
    Column("session_timeout_ms", Integer, nullable=False),
    Column("rebalance_timeout_ms", Integer, nullable=False),
    Column("member_epoch", Integer, nullable=False, server_default=text("0")),
    Column("previous_member_epoch", Integer, nullable=False, server_default=text("0")),
    Column("group_id", ForeignKey(groups.c.group_id, ondelete="CASCADE"), primary_key=True),
    Column("member_id", Text(collation="C"), primary_key=True),
    Column("instance_id", Text(collation="C")),
    Column("client_id", Text, nullable=False, server_default=text("''")),
    Column("client_host", Text, nullable=False, server_default=text("''")),
    Column("rack_id", Text),
    Column("member_state", Text),
    Column("subscribed_topics", ARRAY(Text)),
    Column("subscribed_regex", Text),
    Column("server_assignor", Text),
    Column("protocol_names", ARRAY(Text)),
    Column("protocol_metadata", ARRAY(LargeBinary)),
    Column("assignment", LargeBinary),
    Column("assigned_partitions", JSONB),
    Column("revoking_partitions", JSONB),
    Column("target_partitions", JSONB),
)

consumer_offsets = Table(
    "consumer_offsets",
    metadata,
    Column("committed_offset", BigInteger, CheckConstraint("committed_offset >= 0"), nullable=False),
    Column("committed_at", TimestampTz, nullable=False, server_default=Now),
    Column("expires_at", TimestampTz),
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, CheckConstraint("partition >= 0"), primary_key=True),
    Column("leader_epoch", Integer),
    Column("group_id", ForeignKey(groups.c.group_id, ondelete="CASCADE"), primary_key=True),
    Column("metadata", Text, nullable=False, server_default=text("''")),
    Index("consumer_offsets_partition", "topic_id", "partition"),
)

transactions = Table(
    "transactions",
    metadata,
    Column("producer_id", BigInteger, nullable=False, unique=True),
    Column("started_at", TimestampTz),
    Column("updated_at", TimestampTz, nullable=False, server_default=Now),
    Column("transaction_timeout_ms", Integer, nullable=False),
    Column("producer_epoch", SmallInteger, nullable=False),
    Column("previous_epoch", SmallInteger),
    Column("ended_epoch", SmallInteger),
    Column("previous_producer_id", BigInteger),
    Column("speaker_gateway", BigInteger),
    Column("speaker_connection", BigInteger),
    Column("transactional_id", Text(collation="C"), primary_key=True),
    Column("state", Text, nullable=False, server_default=text("'Empty'")),
    Column("client_id", Text),
    Index("transactions_open", "producer_id", postgresql_where=text("state = 'Ongoing'")),
)

transaction_partitions = Table(
    "transaction_partitions",
    metadata,
    Column("producer_id", BigInteger, primary_key=True),
    Column("first_offset", BigInteger),
    Column("last_offset", BigInteger),
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Index("transaction_partitions_partition", "topic_id", "partition", "producer_id"),
)

transaction_offsets = Table(
    "transaction_offsets",
    metadata,
    Column("producer_id", BigInteger, primary_key=True),
    Column("committed_offset", BigInteger, nullable=False),
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("leader_epoch", Integer),
    Column("group_id", Text(collation="C"), primary_key=True),
    Column("metadata", Text, nullable=False, server_default=text("''")),
    Index("transaction_offsets_group", "group_id", "topic_id", "partition"),
)

aborted_transactions = Table(
    "aborted_transactions",
    metadata,
    Column("producer_id", BigInteger, nullable=False),
    Column("first_offset", BigInteger, nullable=False),
    Column("last_offset", BigInteger, primary_key=True),
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Index("aborted_transactions_producer", "topic_id", "partition", "producer_id", "first_offset"),
)

transaction_counters = Table(
    "transaction_counters",
    metadata,
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("started", BigInteger, nullable=False, server_default=text("0")),
    Column("committed", BigInteger, nullable=False, server_default=text("0")),
    Column("aborted", BigInteger, nullable=False, server_default=text("0")),
    Column("timed_out", BigInteger, nullable=False, server_default=text("0")),
)

pipelines = Table(
    "pipelines",
    metadata,
    Column("batch_id", BigInteger, CheckConstraint("batch_id >= 0"), nullable=False, server_default=text("0")),
    Column("created_at", TimestampTz, nullable=False, server_default=Now),
    Column("updated_at", TimestampTz, nullable=False, server_default=Now),
    Column("last_error_at", TimestampTz),
    Column(
        "checkpoints_kept",
        Integer,
        CheckConstraint("checkpoints_kept >= 1"),
        nullable=False,
        server_default=text("100"),
    ),
    Column("name", Text(collation="C"), CheckConstraint("octet_length(name) BETWEEN 1 AND 200"), primary_key=True),
    Column("last_error", Text),
)

pipeline_positions = Table(
    "pipeline_positions",
    metadata,
    Column("next_offset", BigInteger, CheckConstraint("next_offset >= 0"), nullable=False),
    Column("updated_at", TimestampTz, nullable=False, server_default=Now),
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, CheckConstraint("partition >= 0"), primary_key=True),
    Column("pipeline", ForeignKey(pipelines.c.name, ondelete="CASCADE"), primary_key=True),
    Index("pipeline_positions_partition", "topic_id", "partition"),
)

pipeline_checkpoints = Table(
    "pipeline_checkpoints",
    metadata,
    Column("batch_id", BigInteger, CheckConstraint("batch_id >= 0"), primary_key=True),
    Column("rows", BigInteger, nullable=False, server_default=text("0")),
    Column("created_at", TimestampTz, nullable=False, server_default=Now),
    Column("pipeline", ForeignKey(pipelines.c.name, ondelete="CASCADE"), primary_key=True),
    Column("positions", JSONB, nullable=False, server_default=text("'[]'")),
    Column("seals", JSONB, nullable=False, server_default=text("'{}'")),
)

state_namespaces = Table(
    "state_namespaces",
    metadata,
    Column("sealed_epoch", BigInteger),
    Column("sealed_round", BigInteger),
    Column("created_at", TimestampTz, nullable=False, server_default=Now),
    Column(
        "namespace", Text(collation="C"), CheckConstraint("octet_length(namespace) BETWEEN 1 AND 200"), primary_key=True
    ),
    Column(
        "ordering",
        Text,
        CheckConstraint("ordering IN ('latest', 'sealed')"),
        nullable=False,
        server_default=text("'latest'"),
    ),
    Column("pipeline", ForeignKey(pipelines.c.name)),
    CheckConstraint("(sealed_epoch IS NULL) = (sealed_round IS NULL)"),
    Index("state_namespaces_pipeline", "pipeline", postgresql_where=text("pipeline IS NOT NULL")),
)

state = Table(
    "state",
    metadata,
    Column("epoch", BigInteger, CheckConstraint("epoch >= 0"), nullable=False),
    Column("round", BigInteger, CheckConstraint("round >= 0"), nullable=False),
    Column("updated_at", TimestampTz, nullable=False, server_default=Now),
    Column("namespace", Text(collation="C"), primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("value", LargeBinary),
)

state_history = Table(
    "state_history",
    metadata,
    Column("batch_id", BigInteger, primary_key=True),
    Column("epoch", BigInteger),
    Column("round", BigInteger),
    Column("namespace", Text(collation="C"), primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("value", LargeBinary),
)

state_buffer = Table(
    "state_buffer",
    metadata,
    Column("epoch", BigInteger, CheckConstraint("epoch >= 0"), primary_key=True),
    Column("round", BigInteger, CheckConstraint("round >= 0"), primary_key=True),
    Column("added_in", BigInteger, primary_key=True, server_default=text("0")),
    Column("removed_in", BigInteger),
    Column("namespace", Text(collation="C"), primary_key=True),
    Column("key", LargeBinary, primary_key=True),
    Column("value", LargeBinary),
    Index(
        "state_buffer_waiting",
        "namespace",
        "epoch",
        "round",
        "key",
        unique=True,
        postgresql_where=text("removed_in IS NULL"),
    ),
    Index("state_buffer_removed", "namespace", "removed_in", postgresql_where=text("removed_in IS NOT NULL")),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("first_offset", BigInteger),
    Column("producer_id", BigInteger),
    Column("created_at", TimestampTz, nullable=False, server_default=Now),
    Column("updated_at", TimestampTz, nullable=False, server_default=Now),
    Column("lease_until", TimestampTz),
    Column("expires_at", TimestampTz, nullable=False),
    Column("topic_id", Integer, primary_key=True, autoincrement=False),
    Column("first_partition", Integer),
    Column("attempts", Integer, nullable=False, server_default=text("1")),
    Column("status", Text, nullable=False),
    Column("group_id", Text(collation="C"), primary_key=True),
    Column("tenant", Text(collation="C"), primary_key=True),
    Column("key", Text(collation="C"), primary_key=True),
    Column("owner", Text),
    Column("last_error", Text),
    Column("result_reference", Text),
    Index("idempotency_keys_expiry", "expires_at"),
    Index("idempotency_keys_unsettled", "producer_id", postgresql_where=text("status <> 'COMMITTED'")),
)

pipeline_files = Table(
    "pipeline_files",
    metadata,
    Column("batch_id", BigInteger, primary_key=True),
    Column("size_bytes", BigInteger, nullable=False),
    Column("committed_at", TimestampTz, nullable=False, server_default=Now),
    Column("pipeline", ForeignKey(pipelines.c.name, ondelete="CASCADE"), primary_key=True),
    Column("output", Text(collation="C"), primary_key=True),
    Column("path", Text(collation="C"), primary_key=True),
)

delivery_partitions = Table(
    "delivery_partitions",
    metadata,
    Column("start_offset", BigInteger, nullable=False),
    Column("end_offset", BigInteger, nullable=False),
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("group_id", ForeignKey(groups.c.group_id, ondelete="CASCADE"), primary_key=True),
    CheckConstraint("start_offset <= end_offset"),
)

deliveries = Table(
    "deliveries",
    metadata,
    Column("offset", BigInteger, primary_key=True),
    Column("available_at", TimestampTz, nullable=False, server_default=text("clock_timestamp()")),
    Column("leased_until", TimestampTz),
    Column("first_delivered_at", TimestampTz),
    Column("last_delivered_at", TimestampTz),
    Column("topic_id", Integer, primary_key=True),
    Column("partition", Integer, primary_key=True),
    Column("attempts", Integer, CheckConstraint("attempts >= 0"), nullable=False, server_default=text("0")),
    Column("group_id", Text(collation="C"), primary_key=True),
    Column("state", Text, nullable=False),
    Column("worker", Text),
    Column("last_error", Text),
    ForeignKeyConstraint(
        ["group_id", "topic_id", "partition"],
        [
            "kafka.delivery_partitions.group_id",
            "kafka.delivery_partitions.topic_id",
            "kafka.delivery_partitions.partition",
        ],
        ondelete="CASCADE",
    ),
    Index(
        "deliveries_unsettled",
        "group_id",
        "topic_id",
        "partition",
        "offset",
        postgresql_where=text("state IN ('available', 'acquired')"),
    ),
)

dead_letters = Table(
    "dead_letters",
    metadata,
    Column("dead_letter_id", BigInteger, Identity(always=True), primary_key=True),
    Column("source_offset", BigInteger, nullable=False),
    Column("dlq_offset", BigInteger),
    Column("redriven_offset", BigInteger),
    Column("first_delivered_at", TimestampTz),
    Column("last_delivered_at", TimestampTz),
    Column("died_at", TimestampTz, nullable=False, server_default=Now),
    Column("redriven_at", TimestampTz),
    Column("source_partition", Integer, nullable=False),
    Column("dlq_topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), nullable=False),
    Column("dlq_partition", Integer),
    Column("attempts", Integer, nullable=False),
    Column("copies", Integer, nullable=False, server_default=text("1")),
    Column("group_id", Text(collation="C"), nullable=False),
    Column("source_topic", Text(collation="C"), nullable=False),
    Column("tenant", Text(collation="C"), nullable=False, server_default=text("''")),
    Column("idempotency_key", Text(collation="C")),
    Column("state", Text, nullable=False, server_default=text("'dead'")),
    Column("last_error", Text, nullable=False),
    Index(
        "dead_letters_identity",
        "group_id",
        "source_topic",
        "tenant",
        "idempotency_key",
        unique=True,
        postgresql_where=text("state = 'dead' AND idempotency_key IS NOT NULL"),
    ),
    Index("dead_letters_place", "dlq_topic_id", "dlq_partition", "dlq_offset"),
)

delivery_counters = Table(
    "delivery_counters",
    metadata,
    Column("slot", Integer, primary_key=True, autoincrement=False),
    Column("retried", BigInteger, nullable=False, server_default=text("0")),
    Column("timed_out", BigInteger, nullable=False, server_default=text("0")),
    Column("dead_lettered", BigInteger, nullable=False, server_default=text("0")),
    Column("redriven", BigInteger, nullable=False, server_default=text("0")),
)
