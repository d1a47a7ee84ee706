"""Every refusal a client can be told: one class per meaning, its Kafka code a class attribute.

A duplicate is a return value, not an error; a bug is an ordinary exception, not a `KafkaError`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from kio.schema.errors import ErrorCode

__all__ = ["ErrorCode", "KafkaError", "PipelineError", "StartupError"]


class KafkaError(Exception):
    """A refusal that is answered to the client with `code`; its text says what to do next."""

    code: ClassVar[ErrorCode] = ErrorCode.unknown_server_error

    @property
    def message(self) -> str:
        return str(self)


class StartupError(Exception):
    """The gateway cannot start: one clear sentence for whoever started it, and a non-zero exit."""


class PipelineError(Exception):
    """A pipeline cannot go on: one clear sentence that ends with what to do. Nothing was written by halves."""


# --- batches ---------------------------------------------------------------------------------


class CorruptMessage(KafkaError):
    """The bytes were damaged on the way: the client sends them again."""

    code = ErrorCode.corrupt_message


class InvalidRecord(KafkaError):
    """The batch is structurally wrong: sending it again would not help."""

    code = ErrorCode.invalid_record


class RecordsRefused(KafkaError):
    """Some records of a batch are to blame, and with them the batch is refused as a whole (KIP-467)."""

    code = ErrorCode.invalid_record

    def __init__(self, reasons: Mapping[int, str]) -> None:
        first, reason = next(iter(reasons.items()))
        others = f", and {len(reasons) - 1} more" if len(reasons) > 1 else ""
        super().__init__(f"record {first} of the batch is refused: {reason}{others}")
        self.reasons = dict(reasons)
        """By the record's place in the batch."""


class InvalidKeys(RecordsRefused):
    """Idempotency keys that the registry cannot hold."""


class KeysHeldByOwners(RecordsRefused):
    """Idempotency keys that somebody works on, for as long as they please."""


class KeysHeldByTransactions(RecordsRefused):
    """Idempotency keys of open transactions: whether the records are new is known when those have ended.

    The code is what Kafka itself answers to a Produce that must be tried again for a transaction's sake.
    """

    code = ErrorCode.not_enough_replicas


class MessageTooLarge(KafkaError):
    """A batch or its decompressed content is above the topic's limit."""

    code = ErrorCode.message_too_large


class InvalidTimestamp(KafkaError):
    """A record's timestamp is outside what the topic accepts or PostgreSQL can hold."""

    code = ErrorCode.invalid_timestamp


class UnsupportedForMessageFormat(KafkaError):
    """The batch uses a format older than Kafka 0.11's (magic 2)."""

    code = ErrorCode.unsupported_for_message_format


class UnsupportedCompressionType(KafkaError):
    """The codec is unknown, or not allowed in this request version."""

    code = ErrorCode.unsupported_compression_type


# --- topics and partitions -------------------------------------------------------------------


class UnknownTopicOrPartition(KafkaError):
    """No such topic, or the topic has fewer partitions."""

    code = ErrorCode.unknown_topic_or_partition


class UnknownTopicId(KafkaError):
    """No topic has this id: it was deleted, perhaps created anew under the same name."""

    code = ErrorCode.unknown_topic_id


class InvalidTopic(KafkaError):
    """The topic's name is not one that Kafka allows."""

    code = ErrorCode.invalid_topic_exception


class TopicAlreadyExists(KafkaError):
    code = ErrorCode.topic_already_exists


class InvalidPartitions(KafkaError):
    """The number of partitions asked for cannot be had."""

    code = ErrorCode.invalid_partitions


class InvalidReplicationFactor(KafkaError):
    code = ErrorCode.invalid_replication_factor


class InvalidReplicaAssignment(KafkaError):
    code = ErrorCode.invalid_replica_assignment


class InvalidConfig(KafkaError):
    """A configuration key is unknown or its value is not allowed."""

    code = ErrorCode.invalid_config


class TopicDeletionDisabled(KafkaError):
    """The operator set delete.topic.enable=false."""

    code = ErrorCode.topic_deletion_disabled


class PolicyViolation(KafkaError):
    """The request is well formed but above a limit the operator set, such as partitions at once."""

    code = ErrorCode.policy_violation


class OffsetOutOfRange(KafkaError):
    """The offset is below the log's start or beyond its end."""

    code = ErrorCode.offset_out_of_range


class FencedLeaderEpoch(KafkaError):
    """The client's leader epoch is older than the partition's."""

    code = ErrorCode.fenced_leader_epoch


class UnknownLeaderEpoch(KafkaError):
    """The client's leader epoch is newer than the partition's."""

    code = ErrorCode.unknown_leader_epoch


# --- producers -------------------------------------------------------------------------------


class OutOfOrderSequence(KafkaError):
    """A batch does not follow the producer's last one: records would be lost or reordered."""

    code = ErrorCode.out_of_order_sequence_number

    def __init__(self, *, expected: int, received: int) -> None:
        super().__init__(f"expected sequence {expected}, received {received}")


class DuplicateSequence(KafkaError):
    """A batch was written before, too long ago to say where: clients take this as success."""

    code = ErrorCode.duplicate_sequence_number

    def __init__(self, *, last: int, received: int) -> None:
        super().__init__(f"sequence {received} was written before; the producer is at {last}")


class InvalidProducerEpoch(KafkaError):
    """A batch comes from an epoch that a newer one has replaced."""

    code = ErrorCode.invalid_producer_epoch

    def __init__(self, *, current: int, received: int) -> None:
        super().__init__(f"the producer's epoch is {current}, received {received}")


class ProducerFenced(KafkaError):
    """A newer instance has taken over the producer id."""

    code = ErrorCode.producer_fenced

    def __init__(self, *, current: int, received: int) -> None:
        super().__init__(f"the producer's epoch is {current}, received {received}: another instance took over")
        self.current = current


# --- consumer groups -------------------------------------------------------------------------


class UnknownMemberId(KafkaError):
    """The group has no such member (any more): it joins again."""

    code = ErrorCode.unknown_member_id


class FencedInstanceId(KafkaError):
    """Another member has taken over this group.instance.id."""

    code = ErrorCode.fenced_instance_id


class GroupMaxSizeReached(KafkaError):
    """The group has as many members as the operator allows."""

    code = ErrorCode.group_max_size_reached


class GroupIdNotFound(KafkaError):
    """No such group, or it is of the other kind."""

    code = ErrorCode.group_id_not_found


class IllegalGeneration(KafkaError):
    """The member's generation is not the group's."""

    code = ErrorCode.illegal_generation


class InconsistentGroupProtocol(KafkaError):
    """The member supports nothing that all the others do."""

    code = ErrorCode.inconsistent_group_protocol


class RebalanceInProgress(KafkaError):
    """The member has to join again."""

    code = ErrorCode.rebalance_in_progress


class MemberIdRequired(KafkaError):
    """A new member joins once more, with the id that it is given here (KIP-394)."""

    code = ErrorCode.member_id_required

    def __init__(self, member_id: str) -> None:
        super().__init__(f"join again as {member_id}")
        self.member_id = member_id


class InvalidGroupId(KafkaError):
    """The group id is empty, or holds what PostgreSQL's text cannot."""

    code = ErrorCode.invalid_group_id


class InvalidSessionTimeout(KafkaError):
    """The session timeout is outside what the operator allows."""

    code = ErrorCode.invalid_session_timeout


class NotCoordinator(KafkaError):
    """Another gateway looks after this group: the client asks which."""

    code = ErrorCode.not_coordinator


class NonEmptyGroup(KafkaError):
    """The group has members, so it cannot be deleted."""

    code = ErrorCode.non_empty_group


class GroupSubscribedToTopic(KafkaError):
    """The group reads this topic, so its offsets cannot be deleted."""

    code = ErrorCode.group_subscribed_to_topic


class OffsetMetadataTooLarge(KafkaError):
    """The text that came with an offset is longer than the operator allows."""

    code = ErrorCode.offset_metadata_too_large


class UnstableOffsetCommit(KafkaError):
    """An open transaction may yet change this offset: the client asks again (KIP-447)."""

    code = ErrorCode.unstable_offset_commit


class FencedMemberEpoch(KafkaError):
    """The member's epoch is not the one the group knows: it gives up everything and joins again (KIP-848)."""

    code = ErrorCode.fenced_member_epoch


class StaleMemberEpoch(KafkaError):
    """The member commits or reads offsets with an epoch that is not its newest (KIP-848)."""

    code = ErrorCode.stale_member_epoch


class UnreleasedInstanceId(KafkaError):
    """The group.instance.id is held by a member that has not left (KIP-848)."""

    code = ErrorCode.unreleased_instance_id


class UnsupportedAssignor(KafkaError):
    """No such server-side assignor is configured (KIP-848)."""

    code = ErrorCode.unsupported_assignor


class InvalidRegularExpression(KafkaError):
    """A pattern of topics (KIP-848) or transactional ids (KIP-1152) cannot be read."""

    code = ErrorCode.invalid_regular_expression


# --- transactions ----------------------------------------------------------------------------


class InvalidProducerIdMapping(KafkaError):
    """The producer id is not the one that the transactional id has."""

    code = ErrorCode.invalid_producer_id_mapping


class InvalidTransactionTimeout(KafkaError):
    code = ErrorCode.invalid_transaction_timeout


class ConcurrentTransactions(KafkaError):
    """Another request of the same transactional id is being carried out: the client tries again."""

    code = ErrorCode.concurrent_transactions


class TransactionAbortable(KafkaError):
    """The client must abort its transaction, and may then begin another."""

    code = ErrorCode.transaction_abortable


class TransactionalIdNotFound(KafkaError):
    code = ErrorCode.transactional_id_not_found


class OperationNotAttempted(KafkaError):
    """Another part of the same request was refused, so this one was not tried."""

    code = ErrorCode.operation_not_attempted


class TransactionalIdRequired(KafkaError):
    """A transactional batch came in a request without a transactional id."""

    code = ErrorCode.transactional_id_authorization_failed


# --- requests --------------------------------------------------------------------------------


class InvalidRequest(KafkaError):
    """The request contradicts itself or asks for what does not exist."""

    code = ErrorCode.invalid_request


class UnsupportedVersion(KafkaError):
    """This API or feature is not served."""

    code = ErrorCode.unsupported_version


class InvalidRequiredAcks(KafkaError):
    code = ErrorCode.invalid_required_acks


class InvalidTxnState(KafkaError):
    """The producer is in no transaction that could take this."""

    code = ErrorCode.invalid_txn_state


class MismatchedEndpointType(KafkaError):
    """The client wanted to talk to a controller; a gateway is a broker."""

    code = ErrorCode.mismatched_endpoint_type


class UnsupportedEndpointType(KafkaError):
    code = ErrorCode.unsupported_endpoint_type


class FetchSessionIdNotFound(KafkaError):
    """Fetch sessions are declined, so no session id is ever known."""

    code = ErrorCode.fetch_session_id_not_found


# --- the database ----------------------------------------------------------------------------


class NotLeaderOrFollower(KafkaError):
    """The database is away or the outcome is unknown: the client retries and finds the truth."""

    code = ErrorCode.not_leader_or_follower


class RequestTimedOut(KafkaError):
    """The database did not answer in time; the outcome is unknown and a retry is right."""

    code = ErrorCode.request_timed_out


class CoordinatorNotAvailable(KafkaError):
    """The database is away: the client asks again."""

    code = ErrorCode.coordinator_not_available


class StorageFailed(KafkaError):
    """The database cannot store more (its disk is full, or a limit is reached)."""

    code = ErrorCode.kafka_storage_error
