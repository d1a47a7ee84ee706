# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=False
"""Groups of appends as nearly all of them are, judged and made into a commit by compiled code: known partitions, known
producers' next batches, none with business keys. That a transactional batch's transaction is open, the commit proves.

What is accepted here, `plans.Plan` accepts alike; a group in which anything is unusual is left to it as a whole.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.string cimport memcpy

from gateway.protocol._transcoder cimport Scan, put_rows, rows_bytes

from gateway.broker.append_queue import Appended
from gateway.domain.sequences import BatchIdentity, ProducerState, Written as WrittenBatch
from gateway.protocol.batches import StoredBatch
from gateway.protocol.copy_rows import COPY_HEADER, COPY_TRAILER, OFFSET_AT, TIMESTAMP_AT, row_template
from gateway.storage.keys import ProducerKey
from gateway.storage.log import PartitionState
from gateway.storage.producers import KnownProducer

cdef int64_t SEQUENCES = 1 << 31
cdef int64_t MAX_SEQUENCE = SEQUENCES - 1
cdef Py_ssize_t WINDOW = 5
cdef int64_t OFFSET_PLACE = OFFSET_AT
cdef int64_t TIMESTAMP_PLACE = TIMESTAMP_AT
cdef Py_ssize_t LONGEST_NUMBER = 21  # a sign or not, 19 digits, a comma
cdef Py_ssize_t NUMBERS_OF_AN_ADVANCE = 6
cdef Py_ssize_t NUMBERS_OF_A_STATE = 7
cdef Py_ssize_t NUMBERS_OF_A_BATCH = 4
cdef Py_ssize_t NUMBERS_OF_A_TRANSACTION = 2
cdef Py_ssize_t NUMBERS_OF_AN_EXTENT = 5
cdef Py_ssize_t MESSAGE_HEADER = 5  # a letter, and the length without it

make_tuple = tuple.__new__

# Places in a `ProducedBatch`.
cdef enum:
    DATA = 0
    ATTRIBUTES = 1
    PRODUCER_ID = 2
    PRODUCER_EPOCH = 3
    BASE_SEQUENCE = 4
    RECORD_COUNT = 5
    RECORDS = 7
    HAS_PRODUCER = 8
    IS_TRANSACTIONAL = 9


cdef class Append:
    """The compiled twin of `append_queue.Append`."""

    def __init__(self, key, batch, *, on_done, bint uses_log_append_time, bint knows_abortable=False, keys=None):
        self.key = key
        self.batch = batch
        self.keys = keys
        self.uses_log_append_time = uses_log_append_time
        self.knows_abortable = knows_abortable
        self._on_done = on_done

    @property
    def producer_key(self):
        if self._producer_key is None:
            self._producer_key = make_tuple(ProducerKey, (self.key[0], self.key[1], (<tuple>self.batch)[PRODUCER_ID]))
        return self._producer_key

    @property
    def identity(self):
        cdef tuple batch = <tuple>self.batch
        return BatchIdentity(batch[PRODUCER_EPOCH], batch[BASE_SEQUENCE], batch[RECORD_COUNT])

    @property
    def transaction_of(self):
        cdef tuple batch = <tuple>self.batch
        return batch[PRODUCER_ID] if batch[IS_TRANSACTIONAL] else None

    cpdef settle(self, outcome):
        if self.outcome is None:
            self.outcome = outcome
            # Let go of whoever waits: it holds the append, and together they would stay until the next collection.
            on_done, self._on_done = self._on_done, None
            on_done()


cdef class Stored:
    """A batch for the tail: `StoredBatch` when somebody asks for its bytes. Not the batch itself, which holds what was
    compressed in full."""

    cdef readonly bytes data
    cdef readonly object attributes
    cdef readonly int64_t max_timestamp
    cdef int64_t _base_offset
    cdef object _leader_epoch

    def __len__(self):
        return PyBytes_GET_SIZE(self.data)

    def __bytes__(self):
        return bytes(
            StoredBatch(self, base_offset=self._base_offset, leader_epoch=self._leader_epoch, log_append_time_ms=None)
        )


cdef inline uint8_t *put_number(uint8_t *to, int64_t number) noexcept nogil:
    """In decimal digits, with a comma."""
    cdef uint8_t digits[20]
    cdef int count = 0
    if number < 0:
        to[0] = c"-"
        to += 1
        number = -number
    while True:
        digits[count] = <uint8_t>(c"0" + number % 10)
        count += 1
        number //= 10
        if number == 0:
            break
    while count > 0:
        count -= 1
        to[0] = digits[count]
        to += 1
    to[0] = c","
    return to + 1


cdef inline uint8_t *put_bytes(uint8_t *to, bytes data):
    memcpy(to, PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data))
    return to + PyBytes_GET_SIZE(data)


cdef inline uint8_t *put_header(uint8_t *to, uint8_t kind, int64_t size_bytes) noexcept nogil:
    """Of a message of PostgreSQL's protocol with so many bytes of content."""
    cdef uint32_t length = <uint32_t>(size_bytes + 4)
    to[0] = kind
    to[1] = <uint8_t>(length >> 24)
    to[2] = <uint8_t>(length >> 16)
    to[3] = <uint8_t>(length >> 8)
    to[4] = <uint8_t>length
    return to + MESSAGE_HEADER


cdef inline uint8_t *end_list(uint8_t *to, const uint8_t *start) noexcept nogil:
    """Without the comma after the last number."""
    return to - 1 if to > start else to


cdef class UsualPlan:
    """A group all of whose batches are accepted, and the commit that writes them."""

    cdef readonly bytes message
    """To be sent as it is: the string of statements and the COPY data."""
    cdef readonly int64_t record_count
    cdef readonly int64_t size_bytes
    cdef list _appends
    cdef list _base_offsets
    cdef dict _before  # partition states
    cdef dict _after
    cdef dict _max_timestamps
    cdef dict _producers  # what is known of the producers of each partition
    cdef dict _producers_after
    cdef dict _extents  # what each open transaction gets, by producer's key and epoch

    cdef bint add(self, Append append, dict states, dict producers, Py_ssize_t max_producers) except -1:
        """Whether the batch is one of the usual kind; then it is accepted."""
        cdef tuple batch = <tuple>append.batch
        cdef tuple state, known
        cdef tuple recent = ()
        cdef int64_t count, base_sequence, epoch, last, base_offset, newest_ms
        cdef int64_t run_length = 0
        cdef bint has_producer = batch[HAS_PRODUCER]
        cdef bint is_transactional = batch[IS_TRANSACTIONAL]
        if append.keys is not None or append.uses_log_append_time or (is_transactional and not has_producer):
            return False
        if type(batch[RECORDS]) is not Scan:  # read by Python
            return False
        key = append.key
        found = self._after.get(key)
        if found is None:
            found = states.get(key)
            if found is None:
                return False
            self._before[key] = found
        state = <tuple>found  # log start, last stable, next, leader epoch
        count = batch[RECORD_COUNT]
        base_offset = state[2]
        newest_ms = (<Scan>batch[RECORDS]).max_timestamp
        if has_producer:
            producer_key = append.producer_key
            of_partition = producers.get(key)
            if of_partition is None or len(of_partition) > max_producers:
                return False
            entry = of_partition.get(producer_key)
            # A producer with a transactional id writes inside transactions only, its second batch in a group as well.
            if entry is None or <bint>entry[2] != is_transactional:
                return False
            self._producers[key] = of_partition
            found = self._producers_after.get(producer_key)
            if found is None:
                found = entry[0]
                if found is None:
                    return False
            known = <tuple>found  # epoch, last sequence, run length, recent batches
            base_sequence = batch[BASE_SEQUENCE]
            epoch = batch[PRODUCER_EPOCH]
            if <int64_t>known[0] < epoch:  # as after each transaction of KIP-890
                if base_sequence != 0:
                    return False
                run_length = count
            else:
                run_length = <int64_t>known[2] + count
                if (
                    <int64_t>known[0] != epoch
                    or base_sequence != ((<int64_t>known[1] + 1) & MAX_SEQUENCE)
                    or run_length > SEQUENCES
                ):
                    return False
                recent = <tuple>known[3]
                if len(recent) >= WINDOW:
                    recent = recent[len(recent) + 1 - WINDOW :]
            last = (base_sequence + count - 1) & MAX_SEQUENCE
            written = make_tuple(WrittenBatch, (base_sequence, last, base_offset, newest_ms))
            self._producers_after[producer_key] = make_tuple(
                ProducerState, (epoch, last, run_length, recent + (written,))
            )
            if is_transactional:
                of_transaction = (producer_key, epoch)
                found = self._extents.get(of_transaction)
                first = base_offset if found is None else found[0]
                self._extents[of_transaction] = (first, base_offset + count - 1)
        found = self._max_timestamps.get(key)
        if found is None or <int64_t>found < newest_ms:
            self._max_timestamps[key] = newest_ms
        self._after[key] = make_tuple(
            PartitionState,
            (
                state[0],
                # While no transaction is open the last stable offset is the end; the UPDATE applies the same rule.
                base_offset + count if <int64_t>state[1] == base_offset and not is_transactional else state[1],
                base_offset + count,
                state[3],
            ),
        )
        self._appends.append(append)
        self._base_offsets.append(base_offset)
        self.record_count += count
        self.size_bytes += PyBytes_GET_SIZE(batch[DATA])
        return True

    cdef int make_message(self, tuple script) except -1:
        """`script`: what stands before, between and after the lists of numbers."""
        cdef bytes text = self.make_script(script)
        cdef bytes header = COPY_HEADER
        cdef bytes trailer = COPY_TRAILER
        cdef bytes template
        cdef list templates = []
        cdef list places = []
        cdef Append append
        cdef tuple batch
        cdef Scan records
        cdef int64_t size_bytes, part_bytes
        cdef uint8_t *to
        cdef Py_ssize_t i
        size_bytes = MESSAGE_HEADER + len(text) + 1
        size_bytes += 3 * MESSAGE_HEADER + len(header) + len(trailer)
        for append in self._appends:
            batch = <tuple>append.batch
            template, place = row_template(
                batch[PRODUCER_ID],
                batch[PRODUCER_EPOCH],
                append.key[0],
                append.key[1],
                is_transactional=batch[IS_TRANSACTIONAL],
                timestamp_type=0,
            )
            templates.append(template)
            places.append(place)
            size_bytes += MESSAGE_HEADER + rows_bytes(<Scan>batch[RECORDS], len(template))
        self.message = PyBytes_FromStringAndSize(NULL, size_bytes)
        to = put_header(<uint8_t *>PyBytes_AS_STRING(self.message), c"Q", len(text) + 1)
        to = put_bytes(to, text)
        to[0] = 0
        to = put_bytes(put_header(to + 1, c"d", len(header)), header)
        for i in range(len(self._appends)):
            append = self._appends[i]
            batch = <tuple>append.batch
            template = templates[i]
            records = <Scan>batch[RECORDS]
            part_bytes = rows_bytes(records, len(template))
            to = put_header(to, c"d", part_bytes)
            put_rows(
                records,
                template,
                OFFSET_PLACE,
                TIMESTAMP_PLACE,
                places[i],
                self._base_offsets[i],
                batch[BASE_SEQUENCE],
                None,
                to,
            )
            to += part_bytes
        to = put_bytes(put_header(to, c"d", len(trailer)), trailer)
        put_header(to, c"c", 0)
        return 0

    cdef bytes make_script(self, tuple script):
        """Integers are the only literals in it; see sql/log/advance_partitions.sql."""
        cdef Py_ssize_t room = 0
        cdef Py_ssize_t place
        cdef uint8_t *start
        cdef uint8_t *to
        cdef uint8_t *begin
        cdef tuple state
        for part in script:
            room += len(part)
        room += LONGEST_NUMBER * (len(self._after) * (NUMBERS_OF_AN_ADVANCE + 2))
        room += LONGEST_NUMBER * (
            len(self._producers_after) * (NUMBERS_OF_A_STATE + NUMBERS_OF_A_BATCH * WINDOW + 1)
        )
        room += LONGEST_NUMBER * (len(self._extents) * (NUMBERS_OF_A_TRANSACTION + NUMBERS_OF_AN_EXTENT))
        text = PyBytes_FromStringAndSize(NULL, room)
        start = <uint8_t *>PyBytes_AS_STRING(text)
        to = begin = put_bytes(start, script[0])
        for producer_id, epoch in sorted({(each[0][2], each[1]) for each in self._extents}):
            to = put_number(to, producer_id)
            to = put_number(to, epoch)
        to = begin = put_bytes(end_list(to, begin), script[1])
        for lock in sorted([<int64_t>key[0] << 32 | <int64_t>key[1] for key in self._after]):
            to = put_number(to, lock)
        to = begin = put_bytes(end_list(to, begin), script[2])
        for key, moved in self._after.items():
            to = put_number(to, key[0])
            to = put_number(to, key[1])
            to = put_number(to, self._before[key][2])
            to = put_number(to, moved[2])
            to = put_number(to, moved[1])
            to = put_number(to, self._max_timestamps[key])
        to = begin = put_bytes(end_list(to, begin), script[3])
        for place in range(len(self._after)):
            to = put_number(to, 1 + place * NUMBERS_OF_AN_ADVANCE)
        to = begin = put_bytes(end_list(to, begin), script[4])
        for of_transaction, extent in self._extents.items():
            producer_key = of_transaction[0]
            to = put_number(to, producer_key[2])
            to = put_number(to, producer_key[0])
            to = put_number(to, producer_key[1])
            to = put_number(to, extent[0])
            to = put_number(to, extent[1])
        to = begin = put_bytes(end_list(to, begin), script[5])
        for producer_key, known in self._producers_after.items():
            state = <tuple>known
            to = put_number(to, producer_key[2])
            to = put_number(to, producer_key[0])
            to = put_number(to, producer_key[1])
            to = put_number(to, state[0])
            to = put_number(to, state[1])
            to = put_number(to, state[2])
            to = put_number(to, len(<tuple>state[3]))
            for written in <tuple>state[3]:
                for number in <tuple>written:
                    to = put_number(to, number)
        to = begin = put_bytes(end_list(to, begin), script[6])
        place = 1
        for known in self._producers_after.values():
            to = put_number(to, place)
            place += NUMBERS_OF_A_STATE + NUMBERS_OF_A_BATCH * len(<tuple>(<tuple>known)[3])
        to = put_bytes(end_list(to, begin), script[7])
        return text[: to - start]

    def conclude(self, dict states not None):
        """It was committed: what was planned is true now."""
        states.update(self._after)
        for producer_key, state in self._producers_after.items():
            of_partition = self._producers[producer_key[:2]]
            of_partition[producer_key] = make_tuple(KnownProducer, (state, False, of_partition[producer_key][2]))

    def tell(self, on_written, written_class):
        """Tell consumers: of each partition, where it is now and the batches it got."""
        cdef Append append
        cdef Stored stored
        cdef tuple batch
        cdef int64_t base_offset
        cdef dict batches = {}
        cdef Py_ssize_t i
        for i in range(len(self._appends)):
            append = self._appends[i]
            batch = <tuple>append.batch
            base_offset = self._base_offsets[i]
            stored = Stored.__new__(Stored)
            stored.data = batch[DATA]
            stored.attributes = batch[ATTRIBUTES]
            stored.max_timestamp = (<Scan>batch[RECORDS]).max_timestamp
            stored._base_offset = base_offset
            stored._leader_epoch = self._after[append.key][3]
            of_partition = batches.get(append.key)
            if of_partition is None:
                of_partition = batches[append.key] = []
            of_partition.append((base_offset, base_offset + <int64_t>batch[RECORD_COUNT], stored))
        for key, of_partition in batches.items():
            on_written(make_tuple(written_class, (key, self._after[key], of_partition)))

    def settle(self):
        """Answer producers."""
        cdef Append append
        cdef Py_ssize_t i
        for i in range(len(self._appends)):
            append = self._appends[i]
            append.settle(make_tuple(Appended, (self._base_offsets[i], -1, self._after[append.key][0])))


def plan_usual(list group not None, dict states not None, dict producers not None, *, script, max_producers):
    """The plan of a group in which everything is usual, else None."""
    cdef UsualPlan plan = UsualPlan.__new__(UsualPlan)
    cdef Append append
    cdef Py_ssize_t most = max_producers
    plan._appends = []
    plan._base_offsets = []
    plan._before = {}
    plan._after = {}
    plan._max_timestamps = {}
    plan._producers = {}
    plan._producers_after = {}
    plan._extents = {}
    for append in group:
        if not plan.add(append, states, producers, most):
            return None
    plan.make_message(script)
    return plan
