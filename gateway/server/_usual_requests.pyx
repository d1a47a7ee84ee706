# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=False
"""Produce requests as nearly all of them are, begun and answered by compiled code: a flexible version, nothing tagged,
topics that were looked at lately, good batches that are not compressed and, if they are transactional, need not ask for
anything to be part of their transaction.

What is begun here, `handlers/produce.py` begins alike; any other request is left to it. Nothing of that is done then, but
that a transactional client of the classic protocol has been heard, which may be done twice.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from gateway.broker._usual_appends cimport Append
from gateway.protocol._transcoder cimport Scan, read_fields

from gateway.broker.append_queue import Appended
from gateway.errors import KafkaError
from gateway.handlers.produce import FIRST_VERSION_THAT_ADDS, FIRST_VERSION_WITH_ABORTABLE, encode_outcomes
from gateway.protocol.batches import BatchLimits, ProducedBatch
from gateway.protocol.messages import ApiKey, RequestHeader
from gateway.protocol.produce_requests import (
    FIRST_FLEXIBLE_VERSION,
    FIRST_VERSION_WITH_IDS,
    MAX_ENTRIES as MOST_ENTRIES,
    known_uuid,
)
from gateway.storage.keys import PartitionKey

cdef int PRODUCE = ApiKey.PRODUCE
cdef int FLEXIBLE = FIRST_FLEXIBLE_VERSION
cdef int WITH_IDS = FIRST_VERSION_WITH_IDS
cdef int WITH_ABORTABLE = FIRST_VERSION_WITH_ABORTABLE
cdef int THAT_ADDS = FIRST_VERSION_THAT_ADDS
cdef Py_ssize_t MAX_ENTRIES = MOST_ENTRIES
cdef Py_ssize_t HEADER_BYTES = 10  # key, version, correlation id and the length of the client id
cdef Py_ssize_t UUID_BYTES = 16
cdef int64_t MAX_ELEMENTS = BatchLimits(0, 0).max_elements
cdef Py_ssize_t PARTITION_BYTES = 4 + 2 + 8 + 8 + 8 + 3  # as in a response: nothing but numbers
cdef int PRODUCER_ID = 2  # places in a `ProducedBatch`
cdef int PRODUCER_EPOCH = 3
cdef int PAYLOAD_BYTES = 6
cdef int RECORDS = 7
cdef int IS_TRANSACTIONAL = 9

make_tuple = tuple.__new__


cdef inline uint16_t get_int16(const uint8_t *at) noexcept nogil:
    return <uint16_t>((at[0] << 8) | at[1])


cdef inline uint32_t get_int32(const uint8_t *at) noexcept nogil:
    return (<uint32_t>get_int16(at) << 16) | get_int16(at + 2)


cdef inline uint8_t *put_int32(uint8_t *to, uint32_t value) noexcept nogil:
    to[0] = <uint8_t>(value >> 24)
    to[1] = <uint8_t>(value >> 16)
    to[2] = <uint8_t>(value >> 8)
    to[3] = <uint8_t>value
    return to + 4


cdef inline uint8_t *put_int64(uint8_t *to, uint64_t value) noexcept nogil:
    return put_int32(put_int32(to, <uint32_t>(value >> 32)), <uint32_t>value)


cdef inline uint8_t *put_count(uint8_t *to, Py_ssize_t count) noexcept nogil:
    """A compact array's or string's: one more, as an unsigned varint."""
    cdef uint32_t number = <uint32_t>(count + 1)
    while number >= 0x80:
        to[0] = <uint8_t>(number | 0x80)
        to += 1
        number >>= 7
    to[0] = <uint8_t>number
    return to + 1


cdef struct Cursor:
    const uint8_t *data
    Py_ssize_t position
    Py_ssize_t end


cdef inline bint skip(Cursor *cursor, Py_ssize_t size) noexcept nogil:
    if size > cursor.end - cursor.position:
        return False
    cursor.position += size
    return True


cdef inline bint skip_no_tags(Cursor *cursor) noexcept nogil:
    if cursor.position >= cursor.end or cursor.data[cursor.position] != 0:
        return False
    cursor.position += 1
    return True


cdef inline Py_ssize_t read_count(Cursor *cursor) noexcept nogil:
    """A length or count; -1 for null, -2 if it cannot be read or is 256 MiB and more."""
    cdef uint32_t value = 0
    cdef int shift = 0
    cdef uint8_t byte
    while shift <= 21:
        if cursor.position >= cursor.end:
            return -2
        byte = cursor.data[cursor.position]
        cursor.position += 1
        value |= <uint32_t>(byte & 0x7F) << shift
        if byte < 0x80:
            return <Py_ssize_t>value - 1
        shift += 7
    return -2


cdef bint skip_plain_text(Cursor *cursor, Py_ssize_t size) noexcept nogil:
    """Text of ASCII characters, which need not be decoded to be known for good."""
    cdef Py_ssize_t start = cursor.position
    if not skip(cursor, size):
        return False
    while start < cursor.position:
        if cursor.data[start] >= 0x80:
            return False
        start += 1
    return True


cdef class UsualPending:
    """A request that was begun, as `dispatch.Pending`; `on_settled` is called when all of it is committed or refused."""

    cdef readonly Py_ssize_t held_bytes
    cdef readonly bint is_made
    cdef int _version
    cdef int32_t _correlation_id
    cdef Py_ssize_t _unsettled
    cdef object _on_settled
    cdef list _topics  # name or id as it was sent, how many of the appends are its
    cdef list _appends

    def __call__(self):
        """One of the batches was settled."""
        self._unsettled -= 1
        if self._unsettled == 0 and self._on_settled is not None:
            self._on_settled()

    def response_now(self):
        """The response frame once everything is settled; raises what nobody foresaw."""
        cdef Append append
        cdef bint is_written = True
        for append in self._appends:  # all may be known before everybody was told
            if append.outcome is None:
                return None
        for append in self._appends:
            if not isinstance(append.outcome, Appended):
                if not isinstance(append.outcome, KafkaError):
                    raise append.outcome
                is_written = False
        return self.encode_written() if is_written else self.encode_refused()

    def abandon(self):
        """Nobody will ask for the response any more."""
        self._on_settled = None

    cdef bytes encode_written(self):
        cdef Py_ssize_t room = 4 + 4 + 1 + 5 + 4 + 1
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t count, i
        cdef bytes name, frame
        cdef Append append
        cdef tuple outcome
        cdef uint8_t *start
        cdef uint8_t *to
        for name, count in self._topics:
            room += 5 + PyBytes_GET_SIZE(name) + 5 + count * PARTITION_BYTES + 1
        frame = PyBytes_FromStringAndSize(NULL, room)
        start = <uint8_t *>PyBytes_AS_STRING(frame)
        to = put_int32(start + 4, <uint32_t>self._correlation_id)
        to[0] = 0
        to = put_count(to + 1, len(self._topics))
        for name, count in self._topics:
            if self._version < WITH_IDS:
                to = put_count(to, PyBytes_GET_SIZE(name))
            memcpy(to, PyBytes_AS_STRING(name), <size_t>PyBytes_GET_SIZE(name))
            to = put_count(to + PyBytes_GET_SIZE(name), count)
            for i in range(count):
                append = self._appends[position]
                position += 1
                outcome = <tuple>append.outcome  # base offset, append time, log start
                to = put_int32(to, <uint32_t><int32_t>append.key[1])
                to[0] = to[1] = 0  # no error
                to = put_int64(to + 2, <uint64_t><int64_t>outcome[0])
                to = put_int64(to, <uint64_t><int64_t>outcome[1])
                to = put_int64(to, <uint64_t><int64_t>outcome[2])
                to[0] = 1  # no record errors, no message, no tags
                to[1] = to[2] = 0
                to += 3
            to[0] = 0
            to += 1
        to = put_int32(to, 0)  # not throttled
        to[0] = 0
        to += 1
        put_int32(start, <uint32_t>(to - start - 4))
        return frame[: to - start]

    cdef bytes encode_refused(self):
        cdef Py_ssize_t position = 0
        cdef Append append
        outcomes = []
        for name, count in self._topics:
            called = known_uuid(name) if self._version >= WITH_IDS else name.decode()
            for append in self._appends[position : position + count]:
                outcomes.append((called, append.key[1], append.outcome))
            position += count
        return encode_outcomes(RequestHeader(PRODUCE, self._version, self._correlation_id), outcomes)


def begin_usual(
    bytes content not None, catalog, submit, *, versions, double fresh_since, int64_t now_ms, Py_ssize_t max_plain_bytes,
    find_joined, connection, on_settled
):
    """Begin a request of the usual kind; None, nothing begun, for any other.

    `find_joined`: to which partitions a transactional id, producer id and epoch may append; `adds_by_producing` says
    whether the client leaves it to the broker to add them, `connection` over which one it is heard.
    """
    cdef UsualPending pending
    cdef Append append
    cdef int version
    if PyBytes_GET_SIZE(content) < HEADER_BYTES:
        return None
    version = <int16_t>get_int16(<const uint8_t *>PyBytes_AS_STRING(content) + 2)
    if get_int16(<const uint8_t *>PyBytes_AS_STRING(content)) != PRODUCE or version < FLEXIBLE or version not in versions:
        return None
    pending = UsualPending.__new__(UsualPending)
    pending._version = version
    pending._on_settled = on_settled
    pending._topics = []
    pending._appends = []
    try:
        if not read(pending, content, catalog, fresh_since, now_ms, max_plain_bytes, find_joined, connection):
            return None
    except KafkaError:
        return None
    pending._unsettled = len(pending._appends)
    for append in pending._appends:
        submit(append)
    return pending


cdef bint read(
    UsualPending pending, bytes content, catalog, double fresh_since, int64_t now_ms, Py_ssize_t max_plain_bytes,
    find_joined, connection
) except -1:
    """Read the request into `pending`; false if anything is unusual."""
    cdef Cursor cursor
    cdef Py_ssize_t size, topic_count, partition_count, entries, i, j, start
    cdef int16_t acks
    cdef int32_t index
    cdef bint has_ids = pending._version >= WITH_IDS
    cdef Append append
    cdef Scan records
    cdef tuple topic
    cdef int64_t oldest_ms
    cdef object transactional_id = None
    cdef object producer = None  # whose transaction was looked at last
    cdef object joined = None
    cdef dict topics = catalog.usual_by_id if has_ids else catalog.usual_by_name
    cursor.data = <const uint8_t *>PyBytes_AS_STRING(content)
    cursor.position = HEADER_BYTES
    cursor.end = PyBytes_GET_SIZE(content)
    pending._correlation_id = <int32_t>get_int32(cursor.data + 4)
    size = <int16_t>get_int16(cursor.data + 8)
    if size < -1 or (size > 0 and not skip_plain_text(&cursor, size)) or not skip_no_tags(&cursor):
        return False
    size = read_count(&cursor)
    if size != -1:
        start = cursor.position
        if size <= 0 or not skip_plain_text(&cursor, size):
            return False
        transactional_id = PyBytes_FromStringAndSize(<const char *>cursor.data + start, size).decode()
    if not skip(&cursor, 6):
        return False
    acks = <int16_t>get_int16(cursor.data + cursor.position - 6)
    topic_count = read_count(&cursor)
    if (acks != -1 and acks != 1) or topic_count <= 0:
        return False
    entries = topic_count
    for i in range(topic_count):
        size = UUID_BYTES if has_ids else read_count(&cursor)
        start = cursor.position
        if size <= 0 or not skip(&cursor, size):
            return False
        name = PyBytes_FromStringAndSize(<const char *>cursor.data + start, size)
        found = topics.get(name)
        if found is None:
            return False
        # When it was looked at, topic id, partitions, max.message.bytes, max.decompressed.message.bytes,
        # message.timestamp.after.max.ms, message.timestamp.before.max.ms, whether each record needs a key.
        topic = <tuple>found
        if <double>topic[0] < fresh_since:
            return False
        partition_count = read_count(&cursor)
        entries += partition_count
        if partition_count <= 0 or entries > MAX_ENTRIES:
            return False
        for j in range(partition_count):
            if not skip(&cursor, 4):
                return False
            index = <int32_t>get_int32(cursor.data + cursor.position - 4)
            size = read_count(&cursor)
            start = cursor.position
            if size <= 0 or not skip(&cursor, size) or not skip_no_tags(&cursor):
                return False
            if index < 0 or index >= <int64_t>topic[2]:
                return False
            fields = read_fields(
                PyBytes_FromStringAndSize(<const char *>cursor.data + start, size),
                topic[3],
                min(max_plain_bytes, <Py_ssize_t>topic[4]),
                MAX_ELEMENTS,
            )
            if fields is None or <bint>(<tuple>fields)[IS_TRANSACTIONAL] != (transactional_id is not None):
                return False
            records = <Scan>(<tuple>fields)[RECORDS]
            oldest_ms = records.min_timestamp
            if (
                records.max_timestamp - now_ms > <int64_t>topic[5]
                or (oldest_ms >= 0 and now_ms - oldest_ms > <int64_t>topic[6])
                or (topic[7] and records.lacks_key)
            ):
                return False
            key = make_tuple(PartitionKey, (topic[1], index))
            if transactional_id is not None:
                of_batch = ((<tuple>fields)[PRODUCER_ID], (<tuple>fields)[PRODUCER_EPOCH])
                if producer != of_batch:
                    producer = of_batch
                    joined = find_joined(
                        transactional_id,
                        of_batch[0],
                        of_batch[1],
                        adds_by_producing=pending._version >= THAT_ADDS,
                        connection=connection,
                    )
                if key not in joined:
                    return False
            append = Append.__new__(Append)
            append.key = key
            append.batch = make_tuple(ProducedBatch, fields)
            append.knows_abortable = pending._version >= WITH_ABORTABLE
            append._on_done = pending
            pending._appends.append(append)
            pending.held_bytes += <Py_ssize_t>(<tuple>fields)[PAYLOAD_BYTES]
        pending._topics.append((name, partition_count))
        if not skip_no_tags(&cursor):
            return False
    return skip_no_tags(&cursor)
