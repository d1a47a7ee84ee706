"""The configuration keys Tablewire knows, as data: type, default, limits, meaning.

Names, types and limits are Kafka's, so that every client and console finds what it expects; a key that
changes nothing here says so in its documentation. How overrides are judged is in `configs.py`.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

from gateway.errors import InvalidConfig

__all__ = ["BROKER_CONFIGS", "TOPIC_CONFIGS", "BrokerSynonym", "ConfigKey", "ConfigType", "split_list"]


class ConfigType(enum.IntEnum):
    """`config_type` of a DescribeConfigs response."""

    UNKNOWN = 0
    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7
    CLASS = 8
    PASSWORD = 9


@dataclass(frozen=True, slots=True)
class BrokerSynonym:
    """A broker key that gives a topic key its default; `factor` turns hours or minutes into milliseconds."""

    name: str
    factor: int = 1

    def convert(self, value: str) -> str:
        # Negative means unlimited in every unit.
        return value if self.factor == 1 or value.startswith("-") else str(int(value) * self.factor)


Check = Callable[[str], str | None]
"""Given a normalised value, say what is wrong with it."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """One key. `acts` is false where the value is kept and shown, and nothing here depends on it."""

    name: str
    type: ConfigType
    default: str | None
    meaning: str
    acts: bool = False
    check: Check | None = None
    synonyms: tuple[BrokerSynonym, ...] = ()
    read_only: bool = False

    @property
    def is_sensitive(self) -> bool:
        return self.type is ConfigType.PASSWORD

    @property
    def documentation(self) -> str:
        if self.acts:
            return self.meaning
        kept = "shown" if self.read_only else "stored and shown"
        return f"{self.meaning} For compatibility with Kafka it is {kept} only: it has no effect here."

    def normalise(self, value: str) -> str:
        """Return `value` as it is stored, or raise InvalidConfig naming the key, the value and the rule."""
        text = value.strip()
        match self.type:
            case ConfigType.BOOLEAN:
                text = text.lower()
                if text not in ("true", "false"):
                    raise self._invalid(value, "Expected value to be either true or false")
            case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
                text = self._normalise_integer(text, value)
            case ConfigType.DOUBLE:
                if not _DECIMAL.fullmatch(text):
                    raise self._invalid(value, "Not a number of type DOUBLE")
                text = repr(float(text))
            case ConfigType.LIST:
                text = self._normalise_list(text)
            case _:
                pass
        if self.check is not None and (reason := self.check(text)) is not None:
            raise self._invalid(value, reason)
        return text

    def _normalise_integer(self, text: str, value: str) -> str:
        # The pattern also keeps `1_0` and thousands of digits away from int().
        bound = 1 << (_INTEGER_BITS[self.type] - 1)
        if not _INTEGER.fullmatch(text) or not -bound <= (number := int(text)) < bound:
            raise self._invalid(value, f"Not a number of type {self.type.name}")
        return str(number)

    def _normalise_list(self, text: str) -> str:
        items = split_list(text)
        if "" in items:
            raise InvalidConfig(f"Configuration '{self.name}' values must not be empty.")
        return ",".join(dict.fromkeys(items))

    def _invalid(self, value: str, reason: str) -> InvalidConfig:
        # An error answer must not grow with the mistake, nor repeat a secret.
        shown = "[hidden]" if self.is_sensitive else value if len(value) <= 100 else value[:100] + "…"
        return InvalidConfig(f"Invalid value {shown} for configuration {self.name}: {reason}")


def split_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")] if text.strip() else []


_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,40}")
_DECIMAL: Final = re.compile(r"[+-]?([0-9]{1,40}(\.[0-9]{0,40})?|\.[0-9]{1,40})([eE][+-]?[0-9]{1,3})?")
_INTEGER_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
_THROTTLED_REPLICAS: Final = re.compile(r"\*|[0-9]+:[0-9]+(,[0-9]+:[0-9]+)*|")

MAX_INT: Final = str(2**31 - 1)
MAX_LONG: Final = str(2**63 - 1)
WEEK_MS: Final = str(7 * 24 * 3600 * 1000)
DAY_MS: Final = str(24 * 3600 * 1000)
CENTURY_MS: Final = 100 * 365 * 24 * 3600 * 1000
HOUR_MS: Final = 3600 * 1000
MINUTE_MS: Final = 60 * 1000


def _between(low: float, high: float | None = None) -> Check:
    def check(text: str) -> str | None:
        number = int(text) if _INTEGER.fullmatch(text) else float(text)
        if number < low:
            return f"Value must be at least {low}"
        if high is not None and number > high:
            return f"Value must be no more than {high}"
        return None

    return check


def _one_of(*allowed: str) -> Check:
    def check(text: str) -> str | None:
        return None if text in allowed else f"String must be one of: {', '.join(allowed)}"

    return check


def _each_of(*allowed: str) -> Check:
    def check(text: str) -> str | None:
        wrong = set(split_list(text)) - set(allowed)
        return f"String must be one of: {', '.join(allowed)}" if wrong else None

    return check


def _gzip_level(text: str) -> str | None:
    level = int(text)
    return None if level == -1 or 1 <= level <= 9 else "Value must be between 1 and 9 or equal to -1"


def _retention(text: str) -> str | None:
    return None if text == "-1" or int(text) >= 1 else "Value must be unlimited (-1) or at least 1"


def _header_name(text: str) -> str | None:
    return None if text and len(text) <= 255 and "\0" not in text else "A header's name has 1 to 255 characters"


def _throttled_replicas(text: str) -> str | None:
    if _THROTTLED_REPLICAS.fullmatch(text):
        return None
    return "Value must be '*' or a list of replicas, each written [partitionId]:[brokerId]"


def _no_tiered_storage(text: str) -> str | None:
    return "There is no tiered storage: every record is a row of PostgreSQL" if text == "true" else None


def _index(keys: Iterable[ConfigKey]) -> MappingProxyType[str, ConfigKey]:
    return MappingProxyType({key.name: key for key in keys})


def _from(*names: str) -> tuple[BrokerSynonym, ...]:
    """Synonyms by name; the unit at a name's end tells the factor."""
    factors = {"hours": HOUR_MS, "minutes": MINUTE_MS}
    return tuple(BrokerSynonym(name, factors.get(name.rpartition(".")[2], 1)) for name in names)


_B, _S, _I, _L, _D = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE
_SHORT, _LIST, _PASSWORD = ConfigType.SHORT, ConfigType.LIST, ConfigType.PASSWORD

_CODECS: Final = _one_of("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
_TIMESTAMP_TYPES: Final = _one_of("CreateTime", "LogAppendTime")

TOPIC_CONFIGS: Final = _index(
    [
        # What a produced batch is checked against.
        ConfigKey(
            "max.message.bytes", _I, "1048588", acts=True, check=_between(0),
            synonyms=_from("message.max.bytes"),
            meaning="The largest record batch a producer may send to this topic, in bytes as sent, so"
            " after compression. A larger one is refused with MESSAGE_TOO_LARGE.",
        ),
        ConfigKey(
            "max.decompressed.message.bytes", _I, "67108864", acts=True, check=_between(0),
            synonyms=_from("max.decompressed.message.bytes"),
            meaning="The largest size, in bytes, that a compressed batch may have once it is unpacked. It"
            " protects the gateway's memory from small batches that expand enormously.",
        ),
        ConfigKey(
            "message.timestamp.type", _S, "CreateTime", acts=True, check=_TIMESTAMP_TYPES,
            synonyms=_from("log.message.timestamp.type"),
            meaning="Whose clock a record's timestamp is from: CreateTime keeps the producer's,"
            " LogAppendTime writes the gateway's at the moment of the append.",
        ),
        ConfigKey(
            "message.timestamp.before.max.ms", _L, MAX_LONG, acts=True, check=_between(0),
            synonyms=_from("log.message.timestamp.before.max.ms"),
            meaning="How far a producer's timestamp may lie in the past, in milliseconds, before the batch"
            " is refused with INVALID_TIMESTAMP. Ignored with LogAppendTime.",
        ),
        ConfigKey(
            "message.timestamp.after.max.ms", _L, str(HOUR_MS), acts=True, check=_between(0),
            synonyms=_from("log.message.timestamp.after.max.ms"),
            meaning="How far a producer's timestamp may lie in the future, in milliseconds, before the"
            " batch is refused with INVALID_TIMESTAMP. Ignored with LogAppendTime.",
        ),
        # Tablewire's own: business keys (docs/effects-once.md).
        ConfigKey(
            "idempotency.keys.enable", _B, "false", acts=True,
            meaning="Whether of the records with the same idempotency key only the first is enqueued. Not a"
            " key of Kafka's.",
        ),
        ConfigKey(
            "idempotency.key.header", _S, "idempotency-key", acts=True, check=_header_name,
            meaning="The name of the header that carries a record's idempotency key. Not a key of Kafka's.",
        ),
        ConfigKey(
            "idempotency.tenant.header", _S, "tenant-id", acts=True, check=_header_name,
            meaning="The name of the header that carries the tenant within which the idempotency key is"
            " unique. Not a key of Kafka's.",
        ),
        ConfigKey(
            "idempotency.keys.retention.ms", _L, WEEK_MS, acts=True, check=_between(-1, CENTURY_MS),
            meaning="How long an idempotency key is remembered at least, in milliseconds, whether it was"
            " done or failed; -1 keeps it for ever. Not a key of Kafka's.",
        ),
        # How workers get the topic's records: gateway/domain/deliveries.py.
        ConfigKey(
            "delivery.max.attempts", _I, "5", acts=True, check=_between(1),
            meaning="How often a record is delivered to workers before it becomes a dead letter. A record's header"
            " delivery-max-attempts comes first."
            " Not a key of Kafka's.",
        ),
        ConfigKey(
            "delivery.backoff.ms", _I, "1000", acts=True, check=_between(0),
            meaning="The pause after a record's first failed delivery, in milliseconds. It doubles with each failure,"
            " and up to half of it is left to chance. A record's header delivery-backoff-ms comes first."
            " Not a key of Kafka's.",
        ),
        ConfigKey(
            "delivery.backoff.max.ms", _I, "60000", acts=True, check=_between(0),
            meaning="The longest such pause, in milliseconds. A record's header delivery-backoff-max-ms comes first."
            " Not a key of Kafka's.",
        ),
        ConfigKey(
            "delivery.ack.timeout.ms", _I, "30000", acts=True, check=_between(10),
            meaning="How long a worker may take over a delivery, in milliseconds, before the record is delivered"
            " again with last_error ack_timeout."
            " Not a key of Kafka's.",
        ),
        ConfigKey(
            "delivery.ordering", _S, "in-place", acts=True, check=_one_of("in-place", "pass"),
            meaning="What happens behind a record that failed: in-place delivers nothing later of its partition before"
            " it is settled, pass lets the others go on."
            " Not a key of Kafka's.",
        ),
        ConfigKey(
            "delivery.max.unsettled", _I, "10000", acts=True, check=_between(1),
            meaning="How many offsets of a partition may lie between a group's first unsettled record and the next one"
            " delivered to it: where others pass, a record that is retried for long holds them up after so many."
            " Not a key of Kafka's.",
        ),
        # How long records stay.
        ConfigKey(
            "cleanup.policy", _LIST, "delete", check=_each_of("compact", "delete"),
            synonyms=_from("log.cleanup.policy"),
            meaning="What happens to old records: 'delete' drops them by age and size, 'compact' keeps the"
            " newest record of each key, both do both, and an empty list keeps everything.",
        ),
        ConfigKey(
            "retention.ms", _L, WEEK_MS, check=_between(-1),
            synonyms=_from("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
            meaning="How long a record is kept, in milliseconds; -1 keeps it for ever.",
        ),
        ConfigKey(
            "retention.bytes", _L, "-1", synonyms=_from("log.retention.bytes"),
            meaning="How many bytes of records a partition may hold before its oldest ones go; -1 sets no"
            " bound.",
        ),
        ConfigKey(
            "delete.retention.ms", _L, DAY_MS, check=_between(0),
            synonyms=_from("log.cleaner.delete.retention.ms"),
            meaning="How long a compacted topic keeps a record without a value, in milliseconds, so that"
            " readers can learn of the deletion.",
        ),
        ConfigKey(
            "min.compaction.lag.ms", _L, "0", check=_between(0),
            synonyms=_from("log.cleaner.min.compaction.lag.ms"),
            meaning="The age in milliseconds below which compaction leaves a record alone.",
        ),
        ConfigKey(
            "max.compaction.lag.ms", _L, MAX_LONG, check=_between(1),
            synonyms=_from("log.cleaner.max.compaction.lag.ms"),
            meaning="The age in milliseconds at which an outdated record must have been looked at by"
            " compaction.",
        ),
        ConfigKey(
            "min.cleanable.dirty.ratio", _D, "0.5", check=_between(0, 1),
            synonyms=_from("log.cleaner.min.cleanable.ratio"),
            meaning="The share of a log not yet compacted that makes compaction worth a run.",
        ),
        # Compression of the stored log.
        ConfigKey(
            "compression.type", _S, "producer", check=_CODECS, synonyms=_from("compression.type"),
            meaning="The codec of the stored log. Records are rows, which PostgreSQL compresses as it is"
            " set up to.",
        ),
        ConfigKey(
            "compression.gzip.level", _I, "-1", check=_gzip_level, synonyms=_from("compression.gzip.level"),
            meaning="The effort of gzip, where compression.type is gzip.",
        ),
        ConfigKey(
            "compression.lz4.level", _I, "9", check=_between(1, 17), synonyms=_from("compression.lz4.level"),
            meaning="The effort of lz4, where compression.type is lz4.",
        ),
        ConfigKey(
            "compression.zstd.level", _I, "3", check=_between(-131072, 22),
            synonyms=_from("compression.zstd.level"),
            meaning="The effort of zstd, where compression.type is zstd.",
        ),
        # Kafka's files: there are none here.
        ConfigKey(
            "segment.bytes", _I, str(1 << 30), check=_between(1 << 20), synonyms=_from("log.segment.bytes"),
            meaning="The size of one file of Kafka's log.",
        ),
        ConfigKey(
            "segment.ms", _L, WEEK_MS, check=_between(1), synonyms=_from("log.roll.ms", "log.roll.hours"),
            meaning="The age at which Kafka begins a new log file.",
        ),
        ConfigKey(
            "segment.jitter.ms", _L, "0", check=_between(0),
            synonyms=_from("log.roll.jitter.ms", "log.roll.jitter.hours"),
            meaning="A random part taken off segment.ms so that Kafka's files do not roll all at once.",
        ),
        ConfigKey(
            "segment.index.bytes", _I, "10485760", check=_between(4),
            synonyms=_from("log.index.size.max.bytes"),
            meaning="The size of Kafka's index file from offsets to positions.",
        ),
        ConfigKey(
            "index.interval.bytes", _I, "4096", check=_between(0), synonyms=_from("log.index.interval.bytes"),
            meaning="How many bytes of log Kafka writes between two entries of its index.",
        ),
        ConfigKey(
            "file.delete.delay.ms", _L, "60000", check=_between(0),
            synonyms=_from("log.segment.delete.delay.ms"),
            meaning="How long Kafka waits before it removes a dropped file.",
        ),
        ConfigKey(
            "flush.messages", _L, MAX_LONG, check=_between(1), synonyms=_from("log.flush.interval.messages"),
            meaning="After how many records Kafka forces its log to disk. PostgreSQL does so at every"
            " commit.",
        ),
        ConfigKey(
            "flush.ms", _L, MAX_LONG, check=_between(0),
            synonyms=_from("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
            meaning="After what time Kafka forces its log to disk. PostgreSQL does so at every commit.",
        ),
        ConfigKey(
            "preallocate", _B, "false", synonyms=_from("log.preallocate"),
            meaning="Whether Kafka reserves a file's whole size on disk when it creates it.",
        ),
        # Kafka's replicas: PostgreSQL's replication takes their place.
        ConfigKey(
            "min.insync.replicas", _I, "1", check=_between(1), synonyms=_from("min.insync.replicas"),
            meaning="How many replicas must have a record before acks=all is answered. Any answer here"
            " follows PostgreSQL's commit, which waits for standbys if synchronous_standby_names says so.",
        ),
        ConfigKey(
            "unclean.leader.election.enable", _B, "false", synonyms=_from("unclean.leader.election.enable"),
            meaning="Whether a replica that lags behind may become leader. Any gateway can lead any"
            " partition.",
        ),
        ConfigKey(
            "leader.replication.throttled.replicas", _LIST, "", check=_throttled_replicas,
            meaning="Replicas whose copying is slowed down on the leader's side.",
        ),
        ConfigKey(
            "follower.replication.throttled.replicas", _LIST, "", check=_throttled_replicas,
            meaning="Replicas whose copying is slowed down on the follower's side.",
        ),
        # Kafka's tiered storage.
        ConfigKey(
            "remote.storage.enable", _B, "false", check=_no_tiered_storage,
            meaning="Whether old log files move to an object store; only false is accepted.",
        ),
        ConfigKey(
            "remote.log.copy.disable", _B, "false",
            meaning="Whether a tiered topic stops copying its files to the object store.",
        ),
        ConfigKey(
            "remote.log.delete.on.disable", _B, "false",
            meaning="Whether remote files are deleted when tiered storage is turned off for the topic.",
        ),
        ConfigKey(
            "remote.copy.lag.ms", _L, "0", check=_between(-1),
            meaning="How old a file of a tiered topic must be before it is copied to the object store.",
        ),
        ConfigKey(
            "remote.copy.lag.bytes", _L, "0", check=_between(-1),
            meaning="How many newer bytes must follow a file of a tiered topic before it is copied.",
        ),
        ConfigKey(
            "local.retention.ms", _L, "-2", check=_between(-2), synonyms=_from("log.local.retention.ms"),
            meaning="How long a tiered topic keeps its files locally; -2 follows retention.ms.",
        ),
        ConfigKey(
            "local.retention.bytes", _L, "-2", check=_between(-2),
            synonyms=_from("log.local.retention.bytes"),
            meaning="How many bytes of a tiered topic stay local; -2 follows retention.bytes.",
        ),
    ]
)  # fmt: skip


def _broker(
    name: str,
    type_: ConfigType,
    default: str | None,
    meaning: str,
    *,
    acts: bool = False,
    check: Check | None = None,
    is_dynamic: bool = False,
) -> ConfigKey:
    """A key of brokers; those that are not dynamic are read from the settings once, at the start."""
    return ConfigKey(name, type_, default, meaning, acts=acts, check=check, read_only=not is_dynamic)


_OWN_BROKER_CONFIGS: Final = [
    # Who and where.
    _broker("node.id", _I, "1", "The number clients know this gateway by.", acts=True),
    _broker("broker.id", _I, "1", "The same as node.id, under its older name.", acts=True),
    _broker(
        "broker.heartbeat.interval.ms", _I, "1000", acts=True,
        meaning="How often this gateway tells the others that it lives, and looks for them.",
    ),
    _broker(
        "broker.session.timeout.ms", _I, "5000", acts=True,
        meaning="A gateway that was silent for longer is dead to the others.",
    ),
    _broker("broker.rack", _S, None, "The place of this gateway, for clients that prefer a near one."),
    _broker(
        "process.roles", _LIST, "broker,controller",
        "Every gateway is both: the database holds all state.",
    ),
    _broker(
        "listeners", _LIST, "PLAINTEXT://127.0.0.1:9092",
        "Where this gateway accepts clients.", acts=True,
    ),
    _broker(
        "advertised.listeners", _LIST, None, acts=True,
        meaning="The address clients are told to connect to. If they connect once and then fail, look here.",
    ),
    _broker(
        "listener.security.protocol.map", _S, "PLAINTEXT:PLAINTEXT",
        "Which protocol each listener name speaks."
    ),
    _broker("inter.broker.listener.name", _S, "PLAINTEXT", "Gateways do not talk to each other."),
    _broker(
        "security.inter.broker.protocol", _S, "PLAINTEXT",
        "Gateways meet in the database, not on the network."
    ),
    _broker(
        "inter.broker.protocol.version", _S, "4.0-IV3",
        "The generation of Kafka this gateway behaves like; consoles decide by it what to offer.",
    ),
    _broker("log.dir", _LIST, None, "The directory of Kafka's log."),
    _broker("log.dirs", _LIST, None, "The directories of Kafka's log. Records are in PostgreSQL."),
    # Topics.
    _broker(
        "auto.create.topics.enable", _B, "true",
        "Whether a topic is created when a client first asks for it.",
        acts=True,
    ),
    _broker(
        "delete.topic.enable", _B, "true",
        "Whether topics may be deleted through the protocol.", acts=True,
    ),
    _broker("num.partitions", _I, "1", "Partitions of a topic created without a number.", acts=True),
    _broker(
        "default.replication.factor", _I, "1",
        "Copies of a new topic. PostgreSQL's own replication keeps them."
    ),
    # Limits of requests and connections.
    _broker(
        "socket.request.max.bytes", _I, "104857600", acts=True,
        meaning="The largest request, checked before memory is taken for it.",
    ),
    _broker(
        "queued.max.request.bytes", _L, "268435456", acts=True,
        meaning="Bytes of requests that may wait in this gateway before it stops reading from sockets.",
    ),
    _broker("queued.max.requests", _I, "500", "Requests that may wait in Kafka's queue."),
    _broker("max.connections", _I, "2000", "Connections this gateway accepts.", acts=True),
    _broker("max.connections.per.ip", _I, "2000", "Connections accepted from one address.", acts=True),
    _broker("max.connections.per.ip.overrides", _S, "", "Exceptions to max.connections.per.ip."),
    _broker("max.connection.creation.rate", _I, MAX_INT, "New connections per second."),
    _broker(
        "connections.max.idle.ms", _L, "600000", "After how long a silent connection is closed.", acts=True
    ),
    _broker("fetch.max.bytes", _I, "57671680", "The largest Fetch answer."),
    _broker(
        "max.incremental.fetch.session.cache.slots", _I, "0",
        "Fetch sessions kept; they are declined here.",
    ),
    _broker("num.network.threads", _I, "1", "Kafka's threads for sockets; a gateway has one event loop."),
    _broker("num.io.threads", _I, "1", "Kafka's threads for requests; a gateway has one event loop."),
    # Groups, offsets and transactions.
    _broker(
        "offsets.retention.minutes", _I, "10080",
        "How long the offsets of an empty group are kept.",
        acts=True,
    ),
    _broker(
        "offset.metadata.max.bytes", _I, "4096",
        "The longest text a client may store with an offset.",
        acts=True,
    ),
    _broker(
        "offsets.retention.check.interval.ms", _L, "600000",
        "How often expired offsets are looked for.",
        acts=True,
    ),
    _broker(
        "offsets.topic.replication.factor", _SHORT, "1",
        "Copies of Kafka's offsets topic; offsets are rows.",
    ),
    _broker(
        "offsets.topic.num.partitions", _I, "50",
        "Partitions of Kafka's offsets topic; offsets are rows.",
    ),
    _broker(
        "group.min.session.timeout.ms", _I, "6000",
        "The shortest session a group member may ask for.",
        acts=True,
    ),
    _broker(
        "group.max.session.timeout.ms", _I, "1800000",
        "The longest session a group member may ask for.",
        acts=True,
    ),
    _broker(
        "group.initial.rebalance.delay.ms", _I, "3000",
        "How long a new group waits for more members.",
        acts=True,
    ),
    _broker(
        "group.max.size", _I, MAX_INT,
        "Members a group may have.",
        acts=True,
    ),
    _broker(
        "group.consumer.session.timeout.ms", _I, "45000",
        "Silent for longer than this, a member of the consumer protocol is removed.",
        acts=True,
    ),
    _broker(
        "group.consumer.min.session.timeout.ms", _I, "45000",
        "The shortest session that a consumer group may be given.",
        acts=True,
    ),
    _broker(
        "group.consumer.max.session.timeout.ms", _I, "60000",
        "The longest session that a consumer group may be given.",
        acts=True,
    ),
    _broker(
        "group.consumer.heartbeat.interval.ms", _I, "5000",
        "How often members of the consumer protocol are told to say that they live.",
        acts=True,
    ),
    _broker(
        "group.consumer.min.heartbeat.interval.ms", _I, "5000",
        "The shortest such interval.",
        acts=True,
    ),
    _broker(
        "group.consumer.max.heartbeat.interval.ms", _I, "15000",
        "The longest such interval.",
        acts=True,
    ),
    _broker(
        "group.consumer.max.size", _I, MAX_INT,
        "Members a group of the consumer protocol may have.",
        acts=True,
    ),
    _broker(
        "group.consumer.assignors", _LIST, "uniform,range",
        "The assignors that consumers may choose from; the first one is the default.",
        acts=True,
    ),
    _broker(
        "group.consumer.migration.policy", _S, "bidirectional",
        "A group changes between the classic and the consumer protocol while it is used, both ways.",
    ),
    _broker(
        "transaction.max.timeout.ms", _I, "900000",
        "The longest timeout a transactional producer may ask for.",
    ),
    _broker("transactional.id.expiration.ms", _I, WEEK_MS, "When an unused transactional id is forgotten."),
    _broker(
        "producer.id.expiration.ms", _I, DAY_MS,
        "When the sequences of a silent producer are forgotten.",
    ),
    _broker("transaction.state.log.replication.factor", _SHORT, "1", "Copies of Kafka's transaction log."),
    _broker(
        "transaction.state.log.min.isr", _I, "1",
        "Replicas of Kafka's transaction log that must be in sync.",
    ),
    # Security.
    _broker("super.users", _S, None, "Principals that are allowed everything."),
    _broker(
        "allow.everyone.if.no.acl.found", _B, "true",
        "Whether a resource without an ACL is open to all.",
    ),
    _broker("authorizer.class.name", _S, "", "Kafka's class that judges access; empty: no access control."),
    _broker("sasl.enabled.mechanisms", _LIST, "", "The ways a client may prove who it is."),
    _broker("ssl.keystore.location", _S, None, "The file of the server's key and certificate."),
    _broker("ssl.keystore.password", _PASSWORD, None, "The password of the key store."),
    _broker("ssl.key.password", _PASSWORD, None, "The password of the server's key."),
    _broker("ssl.truststore.location", _S, None, "The file of the certificates that are trusted."),
    _broker("ssl.truststore.password", _PASSWORD, None, "The password of the trust store."),
    _broker("ssl.client.auth", _S, "none", "Whether clients must show a certificate."),
    # Kafka's housekeeping.
    _broker("log.retention.check.interval.ms", _L, "300000", "How often old records are looked for."),
    _broker("log.cleaner.enable", _B, "true", "Whether compaction runs at all."),
    _broker(
        "auto.leader.rebalance.enable", _B, "true",
        "Whether leadership moves back to preferred replicas.",
    ),
    _broker("controlled.shutdown.enable", _B, "true", "Whether a stopping broker hands over its partitions."),
]  # fmt: skip

# A broker default that differs from its topic key's: Kafka leaves all but the coarsest unit unset.
_SYNONYM_TYPES_AND_DEFAULTS: Final[dict[str, tuple[ConfigType, str | None]]] = {
    "log.retention.minutes": (_I, None),
    "log.retention.hours": (_I, "168"),
    "log.roll.ms": (_L, None),
    "log.roll.hours": (_I, "168"),
    "log.roll.jitter.ms": (_L, None),
    "log.roll.jitter.hours": (_I, "0"),
    "log.flush.interval.ms": (_L, None),
    "log.flush.scheduler.interval.ms": (_L, MAX_LONG),
}

# 0 would empty every topic; a topic may say it of itself.
_SYNONYM_CHECKS: Final[dict[str, Check]] = {"log.retention.ms": _retention}

# The bound on what a batch may expand to guards this gateway's memory: whoever starts it decides.
_STATIC_SYNONYMS: Final = frozenset({"max.decompressed.message.bytes"})


def _broker_key_of(synonym: BrokerSynonym, topic_key: ConfigKey) -> ConfigKey:
    type_, default = _SYNONYM_TYPES_AND_DEFAULTS.get(synonym.name, (topic_key.type, topic_key.default))
    # Finer units win, so `log.retention.ms`, which is always set, leaves its coarser synonyms without effect.
    return _broker(
        synonym.name,
        type_,
        default,
        f"The default of the topic setting {topic_key.name}. {topic_key.meaning}",
        acts=topic_key.acts,
        check=_SYNONYM_CHECKS.get(synonym.name, topic_key.check if synonym.factor == 1 else None),
        # As in Kafka: a topic's default may change while brokers run, by the key of the finest unit.
        is_dynamic=synonym is topic_key.synonyms[0] and synonym.name not in _STATIC_SYNONYMS,
    )


BROKER_CONFIGS: Final = _index(
    [
        *_OWN_BROKER_CONFIGS,
        *(_broker_key_of(synonym, key) for key in TOPIC_CONFIGS.values() for synonym in key.synonyms),
    ]
)
"""Every key a DescribeConfigs of a broker shows; a secret is never among the values given to it.

A dynamic one (not `read_only`) can be altered while gateways run.
"""
