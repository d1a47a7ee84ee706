"""Consumer groups: groups, members, committed offsets, the live gateways, and the lag of each group.

Locks: share row exclusive on kafka.topics for an instant (a foreign key points at it); else new objects.
"""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

TABLES = """
-- Small and often updated: room on the page keeps updates HOT.
CREATE TABLE kafka.brokers (
    epoch bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    started_at timestamptz NOT NULL DEFAULT now(),
    heartbeat_at timestamptz NOT NULL DEFAULT now(),
    broker_id integer PRIMARY KEY CHECK (broker_id >= 0),
    port integer NOT NULL,
    backend_pid integer NOT NULL,
    host text NOT NULL,
    http_address text
) WITH (
    fillfactor = 40, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 200,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE kafka.groups (
    coordinator_epoch bigint NOT NULL DEFAULT 0,
    created_at timestamptz NOT NULL DEFAULT now(),
    state_changed_at timestamptz NOT NULL DEFAULT now(),
    coordinator_id integer,
    generation integer NOT NULL DEFAULT 0,
    assignment_epoch integer NOT NULL DEFAULT 0,
    group_id text COLLATE "C" PRIMARY KEY,
    group_type text NOT NULL DEFAULT 'classic' CHECK (group_type IN ('classic', 'consumer')),
    state text NOT NULL DEFAULT 'Empty',
    protocol_type text,
    protocol_name text,
    leader_id text
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE kafka.group_members (
    joined_at timestamptz NOT NULL DEFAULT now(),
    session_timeout_ms integer NOT NULL,
    rebalance_timeout_ms integer NOT NULL,
    member_epoch integer NOT NULL DEFAULT 0,
    previous_member_epoch integer NOT NULL DEFAULT 0,
    group_id text COLLATE "C" NOT NULL REFERENCES kafka.groups ON DELETE CASCADE,
    member_id text COLLATE "C" NOT NULL,
    instance_id text COLLATE "C",
    client_id text NOT NULL DEFAULT '',
    client_host text NOT NULL DEFAULT '',
    rack_id text,
    member_state text,
    subscribed_topics text[],
    subscribed_regex text,
    server_assignor text,
    protocol_names text[],
    protocol_metadata bytea[],
    assignment bytea,
    assigned_partitions jsonb,
    revoking_partitions jsonb,
    target_partitions jsonb,
    PRIMARY KEY (group_id, member_id)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 500,
    autovacuum_vacuum_cost_delay = 0
);

CREATE TABLE kafka.consumer_offsets (
    committed_offset bigint NOT NULL CHECK (committed_offset >= 0),
    committed_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    topic_id integer NOT NULL REFERENCES kafka.topics ON DELETE CASCADE,
    partition integer NOT NULL CHECK (partition >= 0),
    leader_epoch integer,
    group_id text COLLATE "C" NOT NULL REFERENCES kafka.groups ON DELETE CASCADE,
    metadata text NOT NULL DEFAULT '',
    PRIMARY KEY (group_id, topic_id, partition)
) WITH (
    fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
    autovacuum_vacuum_cost_delay = 0
);
CREATE INDEX consumer_offsets_partition ON kafka.consumer_offsets (topic_id, partition);

CREATE VIEW kafka.consumer_lag AS
SELECT o.group_id, t.name AS topic, o.partition, o.committed_offset,
       p.log_start_offset, p.last_stable_offset, p.next_offset AS end_offset,
       greatest(p.next_offset - o.committed_offset, 0) AS lag,
       greatest(p.last_stable_offset - o.committed_offset, 0) AS stable_lag,
       g.state, o.metadata, o.leader_epoch, o.committed_at
FROM kafka.consumer_offsets o
JOIN kafka.groups g USING (group_id)
JOIN kafka.topics t USING (topic_id)
JOIN kafka.partitions p ON p.topic_id = o.topic_id AND p.partition = o.partition;
"""

COMMENTS = {
    "TABLE kafka.brokers": "Gateways on this database, live while their heartbeat is fresh.",
    "COLUMN kafka.brokers.epoch": "New each time a gateway takes this id; a silent one that comes back has lost it.",
    "COLUMN kafka.brokers.started_at": "When it started.",
    "COLUMN kafka.brokers.heartbeat_at": "When it last said that it lives.",
    "COLUMN kafka.brokers.broker_id": "node.id of the gateway.",
    "COLUMN kafka.brokers.port": "Port that clients are told to connect to.",
    "COLUMN kafka.brokers.backend_pid": "The database session it last said so through, see pg_stat_activity. Once that "
    "has ended, another gateway may take the id.",
    "COLUMN kafka.brokers.host": "Host that clients are told to connect to.",
    "COLUMN kafka.brokers.http_address": "Where its metrics and health are served; null if nowhere.",
    "TABLE kafka.groups": "Consumer groups, and groups of Kafka Connect and the like. A group that only stores offsets "
    "has a row too.",
    "COLUMN kafka.groups.coordinator_epoch": "Raised by each gateway that takes the group over; writes made with an "
    "older one "
    "hit no row.",
    "COLUMN kafka.groups.created_at": "When the group was first seen.",
    "COLUMN kafka.groups.state_changed_at": "When it last became what state says; offsets of an empty group expire "
    "from then on.",
    "COLUMN kafka.groups.coordinator_id": "node.id of the gateway that coordinates the group, or did last.",
    "COLUMN kafka.groups.generation": "Raised by each rebalance: the generation (classic) or the group epoch "
    "(consumer).",
    "COLUMN kafka.groups.assignment_epoch": "Epoch of the target assignment (consumer protocol); 0 for classic groups.",
    "COLUMN kafka.groups.group_id": "group.id of its members.",
    "COLUMN kafka.groups.group_type": "classic: members rebalance through a leader; consumer: the gateway assigns "
    "(KIP-848).",
    "COLUMN kafka.groups.state": "Empty, PreparingRebalance, CompletingRebalance, Stable, Assigning or Reconciling.",
    "COLUMN kafka.groups.protocol_type": "consumer, connect or whatever members said; null if only offsets were "
    "committed.",
    "COLUMN kafka.groups.protocol_name": "The assignor or protocol in use.",
    "COLUMN kafka.groups.leader_id": "The member that assigns (classic); null for the consumer protocol.",
    "TABLE kafka.group_members": "Members of groups as they were when their group was last stable.",
    "COLUMN kafka.group_members.joined_at": "When the member was first written.",
    "COLUMN kafka.group_members.session_timeout_ms": "Silent for longer than this, the member is removed.",
    "COLUMN kafka.group_members.rebalance_timeout_ms": "How long the member may take to rejoin or to give up "
    "partitions.",
    "COLUMN kafka.group_members.member_epoch": "Epoch the member has reached (consumer protocol).",
    "COLUMN kafka.group_members.previous_member_epoch": "Epoch before that one (consumer protocol).",
    "COLUMN kafka.group_members.group_id": "The group, see kafka.groups.",
    "COLUMN kafka.group_members.member_id": "Id of the member, unique in its group.",
    "COLUMN kafka.group_members.instance_id": "group.instance.id of a static member; null for a dynamic one.",
    "COLUMN kafka.group_members.client_id": "client.id of the member.",
    "COLUMN kafka.group_members.client_host": "Address the member connected from.",
    "COLUMN kafka.group_members.rack_id": "client.rack of the member.",
    "COLUMN kafka.group_members.member_state": "Where the member is in reconciling its assignment (consumer protocol).",
    "COLUMN kafka.group_members.subscribed_topics": "Topics the member subscribed to by name; null where unknown.",
    "COLUMN kafka.group_members.subscribed_regex": "Topics the member subscribed to by pattern (consumer protocol).",
    "COLUMN kafka.group_members.server_assignor": "Assignor the member prefers (consumer protocol).",
    "COLUMN kafka.group_members.protocol_names": "Protocols the member supports, best first (classic).",
    "COLUMN kafka.group_members.protocol_metadata": "What the member sent with each of them.",
    "COLUMN kafka.group_members.assignment": "What the leader assigned to the member, as bytes (classic).",
    "COLUMN kafka.group_members.assigned_partitions": "Partitions by topic id that the member owns (consumer "
    "protocol).",
    "COLUMN kafka.group_members.revoking_partitions": "Partitions by topic id that the member has yet to give up.",
    "COLUMN kafka.group_members.target_partitions": "Partitions by topic id that the member is to own.",
    "TABLE kafka.consumer_offsets": "Committed offsets. See kafka.consumer_lag.",
    "COLUMN kafka.consumer_offsets.committed_offset": "The next offset the group will read.",
    "COLUMN kafka.consumer_offsets.committed_at": "When it was committed.",
    "COLUMN kafka.consumer_offsets.expires_at": "When it expires, where an old client said so; else null, and the "
    "group's state decides.",
    "COLUMN kafka.consumer_offsets.topic_id": "The topic, see kafka.topics.",
    "COLUMN kafka.consumer_offsets.partition": "Partition number.",
    "COLUMN kafka.consumer_offsets.leader_epoch": "Leader epoch of the last record consumed; null if the client gave "
    "none.",
    "COLUMN kafka.consumer_offsets.group_id": "The group, see kafka.groups.",
    "COLUMN kafka.consumer_offsets.metadata": "Text that the client stored with the offset.",
    "VIEW kafka.consumer_lag": "How far each group is behind in each partition it committed an offset for.",
    "COLUMN kafka.consumer_lag.group_id": "The group.",
    "COLUMN kafka.consumer_lag.topic": "The topic's name.",
    "COLUMN kafka.consumer_lag.partition": "Partition number.",
    "COLUMN kafka.consumer_lag.committed_offset": "The next offset the group will read.",
    "COLUMN kafka.consumer_lag.log_start_offset": "The first offset there is.",
    "COLUMN kafka.consumer_lag.last_stable_offset": "The end as read_committed consumers see it.",
    "COLUMN kafka.consumer_lag.end_offset": "The end of the log.",
    "COLUMN kafka.consumer_lag.lag": "Offsets between the committed one and the end of the log.",
    "COLUMN kafka.consumer_lag.stable_lag": "Offsets between the committed one and the last stable one.",
    "COLUMN kafka.consumer_lag.state": "State of the group.",
    "COLUMN kafka.consumer_lag.metadata": "Text that the client stored with the offset.",
    "COLUMN kafka.consumer_lag.leader_epoch": "Leader epoch that was committed; null if none.",
    "COLUMN kafka.consumer_lag.committed_at": "When the offset was committed.",
}

GRANTS = """
DO $grants$
BEGIN
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_gateway') THEN
        GRANT SELECT, INSERT, UPDATE, DELETE ON kafka.brokers, kafka.groups, kafka.group_members,
            kafka.consumer_offsets TO tablewire_gateway;
        GRANT SELECT ON kafka.consumer_lag TO tablewire_gateway;
    END IF;
    IF EXISTS (SELECT FROM pg_roles WHERE rolname = 'tablewire_reader') THEN
        GRANT SELECT ON kafka.brokers, kafka.groups, kafka.group_members, kafka.consumer_offsets,
            kafka.consumer_lag TO tablewire_reader;
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
    op.execute("DROP VIEW kafka.consumer_lag")
    op.execute("DROP TABLE kafka.consumer_offsets, kafka.group_members, kafka.groups, kafka.brokers")
