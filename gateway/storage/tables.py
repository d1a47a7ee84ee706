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
    Column("first_sequences", ARRAY(Integer), nullable=False),
    Column("last_sequences", ARRAY(Integer), nullable=False),
    Column("base_offsets", ARRAY(BigInteger), nullable=False),
    Column("timestamps_ms", ARRAY(BigInteger), nullable=False),
    Index("producer_sequences_partition", "topic_id", "partition_id"),
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
    Index("transactions_open", "started_at", postgresql_where=text("state = 'Ongoing'")),
)

transaction_partitions = Table(
    "transaction_partitions",
    metadata,
    Column("producer_id", BigInteger, primary_key=True),
    Column("first_offset", BigInteger),
    Column("last_offset", BigInteger),
    Column("topic_id", ForeignKey(topics.c.topic_id, ondelete="CASCADE"), primary_key=True),
    Column("partition", Integer, primary_key=True),
    Index("transaction_partitions_partition", "topic_id", "partition"),
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
