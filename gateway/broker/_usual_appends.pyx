# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=False
"""Groups of appends as nearly all of them are, judged and made into a commit by compiled code: known partitions, known
producers' next batches, none with business keys. That a transactional batch's transaction is open, the commit proves.

What is accepted here, `plans.Plan` accepts alike; a group in which anything is unusual is left to it as a whole.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy, memmove

import structlog

from gateway.protocol._transcoder cimport Scan, put_rows, rows_bytes

from gateway.broker.append_queue import Appended
from gateway.domain.sequences import BatchIdentity, ProducerState, Written as WrittenBatch
from gateway.protocol.batches import StoredBatch
from gateway.protocol.copy_rows import COPY_HEADER, COPY_TRAILER, OFFSET_AT, TIMESTAMP_AT, row_template
from gateway.storage.keys import ProducerKey
from gateway.storage.log import PartitionState

cdef enum:
    WINDOW = 5  # as in gateway/domain/sequences.py

cdef int64_t SEQUENCES = 1 << 31
cdef int64_t MAX_SEQUENCE = SEQUENCES - 1
cdef int64_t NEVER = -(1 << 63)
cdef int64_t OFFSET_PLACE = OFFSET_AT
cdef int64_t TIMESTAMP_PLACE = TIMESTAMP_AT
cdef Py_ssize_t LONGEST_NUMBER = 21  # a sign or not, 19 digits, what stands behind it
cdef Py_ssize_t NUMBERS_OF_AN_ADVANCE = 6
cdef Py_ssize_t NUMBERS_OF_A_PRODUCER = 6
cdef Py_ssize_t NUMBERS_OF_A_BATCH = 3
cdef Py_ssize_t NUMBERS_OF_A_TRANSACTION = 2
cdef Py_ssize_t NUMBERS_OF_AN_EXTENT = 5
cdef Py_ssize_t NUMBERS_ALONE = 2
cdef Py_ssize_t ARRAYS = 6
cdef Py_ssize_t LENGTH = 4  # of a message, a parameter or an element
cdef Py_ssize_t MESSAGE_HEADER = 5  # a letter, and the length without it
cdef Py_ssize_t ARRAY_HEADER = 20  # of a parameter that is an array in binary form, behind its length
cdef Py_ssize_t BIGINT = 8
cdef Py_ssize_t INTEGER = 4
cdef Py_ssize_t SMALLINT = 2

# What `kafka.advance_topic` takes beside arrays, their number, and how much room a partition needs in all of them.
cdef Py_ssize_t ALONE_OF_A_TOPIC = 3 * (LENGTH + BIGINT) + 2 * (LENGTH + INTEGER)
cdef Py_ssize_t ARRAYS_OF_A_TOPIC = 7
cdef Py_ssize_t OF_A_PARTITION = 3 * (LENGTH + BIGINT) + (LENGTH + INTEGER)
cdef Py_ssize_t OF_A_PRODUCER = LENGTH + INTEGER + 2 * LENGTH + BIGINT + NUMBERS_OF_A_BATCH * WINDOW * LONGEST_NUMBER

# The arrays reach from the first partition to the last: at most so many times as many as there are.
cdef Py_ssize_t SPARSEST = 4

# PostgreSQL's numbers of the types that are in them.
cdef int64_t BIGINT_TYPE = 20
cdef int64_t INTEGER_TYPE = 23
cdef int64_t TEXT_TYPE = 25
cdef int64_t TIMESTAMPTZ_TYPE = 1184
cdef int64_t POSTGRES_EPOCH_MS = 946_684_800_000

# A COPY costs PostgreSQL something with the square of its rows, up to a thousand, for which it makes a slot each; then
# the same slots are used again. So what is neither little nor much is divided among several.
cdef int64_t ROWS_OF_A_COPY = 250
cdef int64_t FEWEST_OF_A_COPY = 100
cdef int64_t FEWEST_DIVIDED = 500
cdef int64_t FEWEST_UNDIVIDED = 1800

# Of a row of `remembered_rows`.
cdef bytes ROW_START = b'"('
cdef bytes ROW_END = b')",'

make_tuple = tuple.__new__
log = structlog.get_logger()

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

    cdef object know(self, outcome):
        """Who is to be told; None if it was settled before."""
        if self.outcome is not None:
            return None
        self.outcome = outcome
        # Let go of whoever waits: it holds the append, and together they would stay until the next collection.
        on_done, self._on_done = self._on_done, None
        return on_done

    cpdef settle(self, outcome):
        on_done = self.know(outcome)
        if on_done is not None:
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


cdef inline uint8_t *put_number(uint8_t *to, int64_t number, uint8_t behind=c",") noexcept nogil:
    """In decimal digits, with a comma or what else is to stand behind them."""
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
    to[0] = behind
    return to + 1


cdef inline uint8_t *put_bytes(uint8_t *to, bytes data):
    memcpy(to, PyBytes_AS_STRING(data), <size_t>PyBytes_GET_SIZE(data))
    return to + PyBytes_GET_SIZE(data)


cdef inline uint8_t *put_bytes_of(uint8_t *to, int64_t number, Py_ssize_t size_bytes) noexcept nogil:
    """A number as so many bytes, the highest first."""
    cdef Py_ssize_t i
    for i in range(size_bytes):
        to[i] = <uint8_t>(<uint64_t>number >> (8 * (size_bytes - 1 - i)))
    return to + size_bytes


cdef inline void put_length(uint8_t *to, int64_t size_bytes) noexcept nogil:
    put_bytes_of(to, size_bytes, LENGTH)


cdef inline uint8_t *put_header(uint8_t *to, uint8_t kind, int64_t size_bytes) noexcept nogil:
    """Of a message of PostgreSQL's protocol with so many bytes of content."""
    to[0] = kind
    put_length(to + 1, size_bytes + LENGTH)
    return to + MESSAGE_HEADER


cdef inline uint8_t *put_number_alone(uint8_t *to, int64_t number) noexcept nogil:
    """As a parameter, which is a length and a text."""
    cdef uint8_t *end = put_number(to + LENGTH, number) - 1
    put_length(to, end - to - LENGTH)
    return end


cdef inline uint8_t *begin_array(uint8_t *to) noexcept nogil:
    """A parameter whose elements follow, each with a comma behind it."""
    to[LENGTH] = c"{"
    return to + LENGTH + 1


cdef inline uint8_t *end_array(uint8_t *to, uint8_t *begin) noexcept nogil:
    """`begin` is what `begin_array` returned. The last comma becomes the end."""
    if to == begin:
        to += 1
    (to - 1)[0] = c"}"
    put_length(begin - 1 - LENGTH, to - begin + 1)
    return to


cdef inline uint8_t *put_binary(uint8_t *to, int64_t number, Py_ssize_t size_bytes) noexcept nogil:
    """As a parameter or an element of an array in binary form."""
    put_length(to, size_bytes)
    return put_bytes_of(to + LENGTH, number, size_bytes)


cdef inline uint8_t *put_null(uint8_t *to) noexcept nogil:
    put_length(to, -1)
    return to + LENGTH


cdef inline uint8_t *begin_binary_array(uint8_t *to, int64_t element_type, int64_t count, int64_t first) noexcept nogil:
    """A parameter whose elements follow, the first of them in this place."""
    to = put_bytes_of(to + LENGTH, 1, 4)  # dimension
    to = put_bytes_of(to, 0, 4)  # no nulls
    to = put_bytes_of(to, element_type, 4)
    to = put_bytes_of(to, count, 4)
    return put_bytes_of(to, first, 4)


cdef inline void end_binary_array(uint8_t *to, uint8_t *begin) noexcept nogil:
    """`begin` is what `begin_binary_array` returned."""
    put_length(begin - ARRAY_HEADER - LENGTH, to - begin + ARRAY_HEADER)


cdef class Place:
    """A partition, as the group leaves it."""

    cdef object key
    cdef object log_start_offset
    cdef object leader_epoch
    cdef int64_t expected_offset
    cdef int64_t next_offset
    cdef int64_t last_stable_offset
    cdef int64_t newest_ms
    cdef dict known  # what is known of its producers
    cdef dict producers  # those of the group, `Remembered`, by id
    cdef tuple template  # of rows that no producer is known of

    cdef object state(self):
        return make_tuple(
            PartitionState, (self.log_start_offset, self.last_stable_offset, self.next_offset, self.leader_epoch)
        )


cdef struct Newest:
    int64_t first
    int64_t last
    int64_t base_offset
    int64_t timestamp_ms


cdef class Remembered:
    """A producer in a partition, as the group leaves it. To Python it is a `KnownProducer`."""

    cdef object key  # the partition's
    cdef int64_t producer_id
    cdef readonly bint is_transactional
    cdef int64_t epoch
    cdef int64_t last_sequence
    cdef int64_t run_length
    cdef Newest recent[WINDOW]
    cdef Py_ssize_t recent_count
    cdef tuple template  # of its rows

    @staticmethod
    cdef Remembered of(key, int64_t producer_id, entry):
        """Of what was remembered so far, which stays as it is; None if that is nothing."""
        cdef Remembered one
        cdef Remembered before
        cdef tuple state
        if type(entry) is not Remembered and entry.state is None:
            return None
        one = Remembered.__new__(Remembered)
        one.key = key
        one.producer_id = producer_id
        one.is_transactional = entry.is_transactional
        if type(entry) is Remembered:
            before = <Remembered>entry
            one.epoch = before.epoch
            one.last_sequence = before.last_sequence
            one.run_length = before.run_length
            one.recent = before.recent
            one.recent_count = before.recent_count
            one.template = before.template
        else:
            state = <tuple>entry.state
            one.epoch = state[0]
            one.last_sequence = state[1]
            one.run_length = state[2]
            for first, last, base_offset, timestamp_ms in state[3]:
                one.remember(Newest(first, last, base_offset, timestamp_ms))
        return one

    @property
    def state(self):
        cdef Py_ssize_t i
        recent = [
            make_tuple(
                WrittenBatch,
                (self.recent[i].first, self.recent[i].last, self.recent[i].base_offset, self.recent[i].timestamp_ms),
            )
            for i in range(self.recent_count)
        ]
        return make_tuple(ProducerState, (self.epoch, self.last_sequence, self.run_length, tuple(recent)))

    @property
    def may_be_forgotten(self):
        return False

    cdef void remember(self, Newest written) noexcept:
        if self.recent_count == WINDOW:
            memmove(&self.recent[0], &self.recent[1], (WINDOW - 1) * sizeof(Newest))
            self.recent_count -= 1
        self.recent[self.recent_count] = written
        self.recent_count += 1

    cdef uint8_t *put_window(self, uint8_t *to) noexcept nogil:
        """As `gateway.storage.producers.format_batches`; one batch at least."""
        cdef Py_ssize_t i
        for i in range(self.recent_count):
            to = put_number(to, self.recent[i].base_offset, c":")
            to = put_number(to, ((self.recent[i].last - self.recent[i].first) & MAX_SEQUENCE) + 1, c":")
            to = put_number(to, self.recent[i].timestamp_ms, c" ")
        return to - 1  # without the last space

    cdef bint accept(self, int64_t epoch, int64_t base_sequence, int64_t count, int64_t base_offset, int64_t newest_ms):
        """Whether the batch is the next one; then it is remembered."""
        cdef int64_t run_length
        if self.epoch < epoch:  # as after each transaction of KIP-890
            if base_sequence != 0:
                return False
            run_length = count
            self.recent_count = 0
            self.template = None
        else:
            run_length = self.run_length + count
            if (
                self.epoch != epoch
                or base_sequence != ((self.last_sequence + 1) & MAX_SEQUENCE)
                or run_length > SEQUENCES
            ):
                return False
        self.epoch = epoch
        self.last_sequence = (base_sequence + count - 1) & MAX_SEQUENCE
        self.run_length = run_length
        self.remember(Newest(base_sequence, self.last_sequence, base_offset, newest_ms))
        return True


cdef tuple template_of(Place place, tuple batch):
    return row_template(
        batch[PRODUCER_ID],
        batch[PRODUCER_EPOCH],
        place.key[0],
        place.key[1],
        is_transactional=batch[IS_TRANSACTIONAL],
        timestamp_type=0,
    )


cdef class UsualPlan:
    """A group all of whose batches are accepted, and the commit that writes them."""

    cdef readonly bytes message
    """To be sent as it is: what runs the statements, and the COPY data."""
    cdef readonly int64_t record_count
    cdef readonly int64_t size_bytes
    cdef list _appends
    cdef list _base_offsets
    cdef list _placed  # the place of each append
    cdef list _templates  # of the rows of each append, and where its sequences go
    cdef dict _places  # by key
    cdef list _producers  # `Remembered`
    cdef dict _extents  # what each open transaction gets, by producer's key and epoch

    cdef bint add(self, Append append, dict states, dict producers, Py_ssize_t max_producers) except -1:
        """Whether the batch is one of the usual kind; then it is accepted."""
        cdef tuple batch = <tuple>append.batch
        cdef Place place
        cdef Remembered producer
        cdef tuple template
        cdef int64_t count, newest_ms
        cdef bint is_transactional = batch[IS_TRANSACTIONAL]
        cdef bint has_producer = batch[HAS_PRODUCER]
        if append.keys is not None or append.uses_log_append_time or (is_transactional and not has_producer):
            return False
        if type(batch[RECORDS]) is not Scan:  # read by Python
            return False
        place = self._places.get(append.key)
        if place is None:
            place = self.enter(append.key, states)
            if place is None:
                return False
        count = batch[RECORD_COUNT]
        newest_ms = (<Scan>batch[RECORDS]).max_timestamp
        if has_producer:
            producer = self.producer(place, batch, producers, max_producers)
            if producer is None or not producer.accept(
                batch[PRODUCER_EPOCH], batch[BASE_SEQUENCE], count, place.next_offset, newest_ms
            ):
                return False
            template = producer.template
            if template is None:
                template = producer.template = template_of(place, batch)
            if is_transactional:
                of_transaction = (append.producer_key, producer.epoch)
                found = self._extents.get(of_transaction)
                first = place.next_offset if found is None else found[0]
                self._extents[of_transaction] = (first, place.next_offset + count - 1)
        else:
            template = place.template
            if template is None:
                template = place.template = template_of(place, batch)
        self._appends.append(append)
        self._base_offsets.append(place.next_offset)
        self._placed.append(place)
        self._templates.append(template)
        # While no transaction is open the last stable offset is the end; the UPDATE applies the same rule.
        if place.last_stable_offset == place.next_offset and not is_transactional:
            place.last_stable_offset += count
        place.next_offset += count
        if place.newest_ms < newest_ms:
            place.newest_ms = newest_ms
        self.record_count += count
        self.size_bytes += PyBytes_GET_SIZE(batch[DATA])
        return True

    cdef Remembered producer(self, Place place, tuple batch, dict producers, Py_ssize_t max_producers):
        """Who wrote the batch; None of an unknown one."""
        cdef Remembered one
        cdef bint is_transactional = batch[IS_TRANSACTIONAL]
        producer_id = batch[PRODUCER_ID]
        one = place.producers.get(producer_id)
        if one is not None:
            # One with a transactional id writes inside transactions only, its second batch in a group as well.
            return one if one.is_transactional == is_transactional else None
        if place.known is None:
            place.known = producers.get(place.key)
        if place.known is None or len(place.known) > max_producers:
            return None
        entry = place.known.get((place.key[0], place.key[1], producer_id))
        if entry is None:
            return None
        one = Remembered.of(place.key, producer_id, entry)
        if one is None or one.is_transactional != is_transactional:
            return None
        place.producers[producer_id] = one
        self._producers.append(one)
        return one

    cdef Place enter(self, key, dict states):
        """The place of a partition's first batch; None of an unknown partition."""
        cdef Place place
        state = states.get(key)
        if state is None:
            return None
        place = Place.__new__(Place)
        place.key = key
        place.log_start_offset, place.last_stable_offset, place.next_offset, place.leader_epoch = <tuple>state
        place.expected_offset = place.next_offset
        place.newest_ms = NEVER
        place.producers = {}
        self._places[key] = place
        return place

    cdef int make_message(self, tuple commit, int64_t follows, int64_t number) except -1:
        """`commit`: a `UsualCommit`."""
        cdef set next_copies = self.next_copies()
        cdef Py_ssize_t copies = 1 + len(next_copies)
        cdef bytes begin, bind_partitions, bind_topic, bind_end, execute, copy, end
        begin, bind_partitions, bind_topic, bind_end, execute, copy, end = commit
        cdef bint is_of_one_topic = len(bind_topic) > 0 and self.is_of_one_topic()
        cdef bytes bind = bind_topic if is_of_one_topic else bind_partitions
        cdef bytes parameters = (
            self.topic_parameters(follows, number) if is_of_one_topic else self.partitions_parameters(follows, number)
        )
        cdef bytes header = COPY_HEADER
        cdef bytes trailer = COPY_TRAILER
        cdef bytes template
        cdef Append append
        cdef tuple batch
        cdef Scan records
        cdef int64_t size_bytes, part_bytes
        cdef uint8_t *to
        cdef Py_ssize_t i
        size_bytes = len(begin) + MESSAGE_HEADER + len(bind) + len(parameters) + len(bind_end) + len(execute) + len(end)
        size_bytes += copies * (len(copy) + 3 * MESSAGE_HEADER + len(header) + len(trailer))
        for i in range(len(self._appends)):
            append = self._appends[i]
            template = (<tuple>self._templates[i])[0]
            size_bytes += MESSAGE_HEADER + rows_bytes(<Scan>(<tuple>append.batch)[RECORDS], len(template))
        self.message = PyBytes_FromStringAndSize(NULL, size_bytes)
        to = put_bytes(<uint8_t *>PyBytes_AS_STRING(self.message), begin)
        to = put_bytes(put_header(to, c"B", len(bind) + len(parameters) + len(bind_end)), bind)
        to = put_bytes(put_bytes(put_bytes(to, parameters), bind_end), execute)
        to = put_bytes(put_header(put_bytes(to, copy), c"d", len(header)), header)
        for i in range(len(self._appends)):
            append = self._appends[i]
            batch = <tuple>append.batch
            template, sequence_at = <tuple>self._templates[i]
            records = <Scan>batch[RECORDS]
            if i in next_copies:
                to = put_bytes(put_header(to, c"d", len(trailer)), trailer)
                to = put_bytes(put_header(to, c"c", 0), copy)
                to = put_bytes(put_header(to, c"d", len(header)), header)
            part_bytes = rows_bytes(records, len(template))
            to = put_header(to, c"d", part_bytes)
            put_rows(
                records,
                template,
                OFFSET_PLACE,
                TIMESTAMP_PLACE,
                sequence_at,
                self._base_offsets[i],
                batch[BASE_SEQUENCE],
                None,
                to,
            )
            to += part_bytes
        to = put_bytes(put_header(to, c"d", len(trailer)), trailer)
        put_bytes(put_header(to, c"c", 0), end)
        return 0

    cdef set next_copies(self):
        """The appends with which another COPY begins."""
        cdef Py_ssize_t i
        cdef int64_t count
        cdef int64_t rows = 0
        cdef int64_t left = self.record_count
        cdef set begins_at = set()
        if FEWEST_DIVIDED <= left < FEWEST_UNDIVIDED:
            for i in range(len(self._appends)):
                if rows >= ROWS_OF_A_COPY and left >= FEWEST_OF_A_COPY:
                    begins_at.add(i)
                    rows = 0
                count = <int64_t>(<tuple>(<Append>self._appends[i]).batch)[RECORD_COUNT]
                rows += count
                left -= count
        return begins_at

    cdef bytes partitions_parameters(self, int64_t follows, int64_t number):
        """As `gateway.storage.log.advance_values` has them; see sql/log/advance_partitions.sql."""
        cdef Py_ssize_t room = NUMBERS_ALONE * (LENGTH + LONGEST_NUMBER) + ARRAYS * (LENGTH + 2)
        cdef Py_ssize_t begins_at
        cdef Py_ssize_t i
        cdef uint8_t *start
        cdef uint8_t *to
        cdef uint8_t *begin
        cdef Place place
        cdef Remembered producer
        room += LONGEST_NUMBER * (len(self._places) * (NUMBERS_OF_AN_ADVANCE + 2))
        room += len(self._producers) * (
            LONGEST_NUMBER * (NUMBERS_OF_A_PRODUCER + NUMBERS_OF_A_BATCH * WINDOW)
            + len(ROW_START)
            + len(ROW_END)
        )
        room += LONGEST_NUMBER * (len(self._extents) * (NUMBERS_OF_A_TRANSACTION + NUMBERS_OF_AN_EXTENT))
        parameters = PyBytes_FromStringAndSize(NULL, room)
        start = <uint8_t *>PyBytes_AS_STRING(parameters)
        to = put_number_alone(put_number_alone(start, follows), number)
        to = begin = begin_array(to)
        for producer_id, epoch in sorted({(each[0][2], each[1]) for each in self._extents}):
            to = put_number(to, producer_id)
            to = put_number(to, epoch)
        to = begin = begin_array(end_array(to, begin))
        for lock in sorted([<int64_t>key[0] << 32 | <int64_t>key[1] for key in self._places]):
            to = put_number(to, lock)
        to = begin = begin_array(end_array(to, begin))
        for place in self._places.values():
            to = put_number(to, place.key[0])
            to = put_number(to, place.key[1])
            to = put_number(to, place.expected_offset)
            to = put_number(to, place.next_offset)
            to = put_number(to, place.last_stable_offset)
            to = put_number(to, place.newest_ms)
        to = begin = begin_array(end_array(to, begin))
        for begins_at in range(len(self._places)):
            to = put_number(to, 1 + begins_at * NUMBERS_OF_AN_ADVANCE)
        to = begin = begin_array(end_array(to, begin))
        for of_transaction, extent in self._extents.items():
            producer_key = of_transaction[0]
            to = put_number(to, producer_key[2])
            to = put_number(to, producer_key[0])
            to = put_number(to, producer_key[1])
            to = put_number(to, extent[0])
            to = put_number(to, extent[1])
        to = begin = begin_array(end_array(to, begin))
        for producer in self._producers:
            to = put_bytes(to, ROW_START)
            to = put_number(to, producer.producer_id)
            to = put_number(to, producer.key[0])
            to = put_number(to, producer.key[1])
            to = put_number(to, producer.epoch)
            to = put_number(to, producer.last_sequence)
            to = put_number(to, producer.run_length)
            to = put_bytes(producer.put_window(to), ROW_END)
        to = end_array(to, begin)
        return parameters[: to - start]

    cdef bint is_of_one_topic(self):
        """Whether it can be told to `kafka.advance_topic`: no transaction, and one producer in all partitions, or none
        in any."""
        cdef Remembered producer
        cdef Remembered first
        cdef Py_ssize_t count = len(self._places)
        cdef list partitions = [key[1] for key in self._places]
        if self._extents or len({key[0] for key in self._places}) != 1:
            return False
        if max(partitions) - min(partitions) >= SPARSEST * count:
            return False
        if not self._producers:
            return True
        if len(self._producers) != count:
            return False
        first = self._producers[0]
        for producer in self._producers:
            if producer.producer_id != first.producer_id or producer.epoch != first.epoch:
                return False
        return True

    cdef bytes topic_parameters(self, int64_t follows, int64_t number):
        """In binary form; see sql/log/advance_topic.sql. What is said of partitions that are not in the list, between
        those that are, nobody looks at."""
        cdef list partitions = sorted([key[1] for key in self._places])
        cdef int64_t first = partitions[0]
        cdef Py_ssize_t count = partitions[len(partitions) - 1] - first + 1
        cdef list places = [None] * count
        cdef list producers = [None] * count
        cdef bint has_producer = bool(self._producers)
        cdef Py_ssize_t room = ALONE_OF_A_TOPIC + ARRAYS_OF_A_TOPIC * (LENGTH + ARRAY_HEADER)
        cdef Py_ssize_t i
        cdef uint8_t *start
        cdef uint8_t *to
        cdef uint8_t *begin
        cdef uint8_t *text
        cdef Place place
        cdef Remembered producer
        for place in self._places.values():
            places[<Py_ssize_t>(<int64_t>place.key[1] - first)] = place
        for producer in self._producers:
            producers[<Py_ssize_t>(<int64_t>producer.key[1] - first)] = producer
        room += count * (OF_A_PARTITION + OF_A_PRODUCER)
        parameters = PyBytes_FromStringAndSize(NULL, room)
        start = <uint8_t *>PyBytes_AS_STRING(parameters)
        to = put_binary(put_binary(start, follows, BIGINT), number, BIGINT)
        to = put_binary(to, next(iter(self._places))[0], INTEGER)
        to = begin = begin_binary_array(to, INTEGER_TYPE, len(partitions), 1)
        for partition in partitions:
            to = put_binary(to, partition, INTEGER)
        end_binary_array(to, begin)
        to = begin = begin_binary_array(to, BIGINT_TYPE, count, first)
        for place in places:
            to = put_binary(to, 0 if place is None else place.expected_offset, BIGINT)
        end_binary_array(to, begin)
        to = begin = begin_binary_array(to, BIGINT_TYPE, count, first)
        for place in places:
            to = put_binary(to, 0 if place is None else place.next_offset, BIGINT)
        end_binary_array(to, begin)
        to = begin = begin_binary_array(to, TIMESTAMPTZ_TYPE, count, first)
        for place in places:
            to = put_binary(to, 0 if place is None else (place.newest_ms - POSTGRES_EPOCH_MS) * 1000, BIGINT)
        end_binary_array(to, begin)
        if not has_producer:
            for i in range(5):
                to = put_null(to)
            return parameters[: to - start]
        producer = self._producers[0]
        to = put_binary(put_binary(to, producer.producer_id, BIGINT), producer.epoch, SMALLINT)
        to = begin = begin_binary_array(to, INTEGER_TYPE, count, first)
        for producer in producers:
            to = put_binary(to, 0 if producer is None else producer.last_sequence, INTEGER)
        end_binary_array(to, begin)
        to = begin = begin_binary_array(to, BIGINT_TYPE, count, first)
        for producer in producers:
            to = put_binary(to, 0 if producer is None else producer.run_length, BIGINT)
        end_binary_array(to, begin)
        to = begin = begin_binary_array(to, TEXT_TYPE, count, first)
        for producer in producers:
            text = to + LENGTH
            to = text if producer is None else producer.put_window(text)
            put_length(text - LENGTH, to - text)
        end_binary_array(to, begin)
        return parameters[: to - start]

    def conclude(self, dict states not None):
        """It was sent: what was planned is believed, until the commit proves it."""
        cdef Place place
        for place in self._places.values():
            states[place.key] = place.state()
            for producer_id, one in place.producers.items():
                place.known[(place.key[0], place.key[1], producer_id)] = one  # it was found by that key

    def tell(self, on_written, written_class):
        """Tell consumers: of each partition, where it is now and the batches it got."""
        cdef Append append
        cdef Place place
        cdef Stored stored
        cdef tuple batch
        cdef int64_t base_offset
        cdef dict batches = {key: [] for key in self._places}
        cdef Py_ssize_t i
        for i in range(len(self._appends)):
            append = self._appends[i]
            place = self._placed[i]
            batch = <tuple>append.batch
            base_offset = self._base_offsets[i]
            stored = Stored.__new__(Stored)
            stored.data = batch[DATA]
            stored.attributes = batch[ATTRIBUTES]
            stored.max_timestamp = (<Scan>batch[RECORDS]).max_timestamp
            stored._base_offset = base_offset
            stored._leader_epoch = place.leader_epoch
            (<list>batches[place.key]).append((base_offset, base_offset + <int64_t>batch[RECORD_COUNT], stored))
        for place in self._places.values():
            on_written(make_tuple(written_class, (place.key, place.state(), batches[place.key])))

    def settle(self):
        """Answer producers. All that is known is said before anybody is told, so that a connection answers all of its
        requests in one piece."""
        cdef Append append
        cdef Place place
        cdef Py_ssize_t i
        cdef list told = []
        for i in range(len(self._appends)):
            append = self._appends[i]
            place = self._placed[i]
            told.append(append.know(make_tuple(Appended, (self._base_offsets[i], -1, place.log_start_offset))))
        for on_done in told:
            if on_done is None:
                continue
            try:
                on_done()
            except Exception:  # the others are told all the same
                log.exception("a producer was not told of what was written")


def plan_usual(
    list group not None, dict states not None, dict producers not None, *, commit, max_producers, follows, number
):
    """The plan of a group in which everything is usual, else None. `number` is that of the commit in its session,
    `follows` that of the one it is sent behind, or 0."""
    cdef UsualPlan plan = UsualPlan.__new__(UsualPlan)
    cdef Append append
    cdef Py_ssize_t most = max_producers
    plan._appends = []
    plan._base_offsets = []
    plan._placed = []
    plan._templates = []
    plan._places = {}
    plan._producers = []
    plan._extents = {}
    for append in group:
        if not plan.add(append, states, producers, most):
            return None
    plan.make_message(<tuple>commit, follows, number)
    return plan
