# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, embedsignature=False
"""Records to rows and back without a Python object per record: the compiled twin of `plain_transcoder`.

The same functions, refusals and bytes. What a client sent is read only by a cursor that checks each number and length
against the end of the data; what is written goes into memory of a size that was summed up before, and that too is checked
row by row. Rows are read where libpq holds them. Large batches are read and written without the interpreter's lock.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memchr, memcmp, memcpy

from crc32c import crc32c

from gateway.errors import InvalidRecord, InvalidTimestamp, MessageTooLarge
from gateway.protocol import plain_transcoder

IS_COMPILED = True

cdef extern from *:
    """
    #include <stdint.h>

    static inline void put_int16(uint8_t *to, uint16_t value) {
        to[0] = (uint8_t)(value >> 8); to[1] = (uint8_t)value;
    }
    static inline void put_int32(uint8_t *to, uint32_t value) {
        to[0] = (uint8_t)(value >> 24); to[1] = (uint8_t)(value >> 16);
        to[2] = (uint8_t)(value >> 8); to[3] = (uint8_t)value;
    }
    static inline void put_int64(uint8_t *to, uint64_t value) {
        put_int32(to, (uint32_t)(value >> 32)); put_int32(to + 4, (uint32_t)value);
    }
    static inline uint16_t get_int16(const uint8_t *from) { return (uint16_t)((from[0] << 8) | from[1]); }
    static inline uint32_t get_int32(const uint8_t *from) {
        return ((uint32_t)get_int16(from) << 16) | get_int16(from + 2);
    }
    static inline uint64_t get_int64(const uint8_t *from) {
        return ((uint64_t)get_int32(from) << 32) | get_int32(from + 4);
    }
    """
    void put_int16(uint8_t *to, uint16_t value) noexcept nogil
    void put_int32(uint8_t *to, uint32_t value) noexcept nogil
    void put_int64(uint8_t *to, uint64_t value) noexcept nogil
    uint16_t get_int16(const uint8_t *source) noexcept nogil
    uint32_t get_int32(const uint8_t *source) noexcept nogil
    uint64_t get_int64(const uint8_t *source) noexcept nogil

cdef extern from "Python.h":
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *data, Py_ssize_t size) except NULL
    char *bytes_data "PyBytes_AS_STRING"(PyObject *data) noexcept nogil
    int resize_bytes "_PyBytes_Resize"(PyObject **data, Py_ssize_t size) except -1
    void Py_XDECREF(PyObject *data)

cdef int64_t NO_TIMESTAMP = -1
cdef int64_t MAX_TIMESTAMP_MS = 9_224_318_015_999_999
cdef int64_t POSTGRES_EPOCH_MS = 946_684_800_000
cdef int64_t SMALLEST_RECORD_BYTES = 7
cdef int64_t MAX_INT32 = 0x7FFF_FFFF
cdef int64_t BATCH_HEADER_BYTES = 61
cdef uint16_t TRANSACTIONAL_BIT = 0x10
cdef int64_t ARRAY_HEADER_BYTES = 24  # the field's length, dimensions, null flag, element type, elements, lower bound
cdef uint32_t TEXT_OID = 25
cdef uint32_t BYTEA_OID = 17

# From here on the interpreter's other threads may go on meanwhile.
cdef int64_t LARGE_BYTES = 1 << 16

cdef struct Record:
    int64_t timestamp
    int64_t key
    int64_t key_length  # negative: null, here and below
    int64_t value
    int64_t value_length
    int64_t headers  # where the first one begins
    int64_t header_count
    int64_t header_names_bytes
    int64_t header_values_bytes
    bint has_null_header


cdef struct Summary:
    int64_t min_timestamp
    int64_t min_present_timestamp
    int64_t max_timestamp
    int64_t variable_bytes  # of all rows: what comes after their templates
    bint lacks_key
    bint has_nul


cdef inline bint fail(Cursor *cursor, Fault fault, int64_t first, int64_t second) noexcept nogil:
    cursor.fault = fault
    cursor.first = first
    cursor.second = second
    return False


cdef inline bint read_number(Cursor *cursor, int bits, int64_t *value) noexcept nogil:
    """A zigzag varint of at most `bits` bits, as Kafka's ByteUtils reads it."""
    cdef uint64_t number = 0
    cdef uint64_t low
    cdef int shift = 0
    cdef int64_t position = cursor.position
    while shift < bits:
        if position >= cursor.end:
            return fail(cursor, ENDS_INSIDE_NUMBER, 0, 0)
        low = cursor.data[position] & 0x7F
        if shift == 63 and low > 1:
            # Beyond 64 bits, whether the number ends here or not.
            break
        number |= low << shift
        if cursor.data[position] < 0x80:
            if bits == 32 and number >> 32:
                break
            cursor.position = position + 1
            value[0] = <int64_t>((number >> 1) ^ (0 - (number & 1)))
            return True
        position += 1
        shift += 7
    return fail(cursor, NUMBER_TOO_LONG, bits, 0)


cdef inline bint skip(Cursor *cursor, int64_t length) noexcept nogil:
    if length > cursor.end - cursor.position:
        return fail(cursor, FIELD_TOO_LONG, length, cursor.end - cursor.position)
    cursor.position += length
    return True


cdef inline bint read_bytes(Cursor *cursor, int64_t *start, int64_t *length) noexcept nogil:
    """Any negative length is null, as Kafka has it."""
    if not read_number(cursor, 32, length):
        return False
    start[0] = cursor.position
    return length[0] < 0 or skip(cursor, length[0])


cdef bint is_utf8(const uint8_t *data, int64_t length) noexcept nogil:
    """As Python and PostgreSQL have it: no overlong forms, no surrogates, nothing above U+10FFFF."""
    cdef int64_t position = 0
    cdef int more
    cdef uint8_t byte, lowest, highest
    while position < length:
        byte = data[position]
        position += 1
        if byte < 0x80:
            continue
        lowest = 0x80
        highest = 0xBF
        if byte < 0xC2:
            return False
        elif byte < 0xE0:
            more = 1
        elif byte < 0xF0:
            more = 2
            if byte == 0xE0:
                lowest = 0xA0
            elif byte == 0xED:
                highest = 0x9F
        elif byte < 0xF5:
            more = 3
            if byte == 0xF0:
                lowest = 0x90
            elif byte == 0xF4:
                highest = 0x8F
        else:
            return False
        if more > length - position:
            return False
        if data[position] < lowest or data[position] > highest:
            return False
        position += 1
        more -= 1
        while more > 0:
            if data[position] & 0xC0 != 0x80:
                return False
            position += 1
            more -= 1
    return True


cdef bint read_record(
    Cursor *cursor, int64_t base_timestamp, int64_t *elements, int64_t max_elements, Record *record, bint *has_nul
) noexcept nogil:
    """Read one record as Kafka's DefaultRecord does; `has_nul` is where PostgreSQL's text would not hold it."""
    cdef int64_t length, end, delta, start, size, i
    if not read_number(cursor, 32, &length):
        return False
    end = cursor.position + length
    if not skip(cursor, 1):  # attributes: unused, and whatever they are Kafka takes them
        return False
    if not read_number(cursor, 64, &delta):
        return False
    record.timestamp = <int64_t>(<uint64_t>base_timestamp + <uint64_t>delta)
    if not read_number(cursor, 32, &delta):
        return False
    if delta != cursor.index:
        return fail(cursor, WRONG_DELTA, delta, 0)
    if not read_bytes(cursor, &record.key, &record.key_length):
        return False
    if not read_bytes(cursor, &record.value, &record.value_length):
        return False
    if not read_number(cursor, 32, &record.header_count):
        return False
    if record.header_count < 0:
        return fail(cursor, NEGATIVE_HEADERS, record.header_count, 0)
    elements[0] += record.header_count
    if elements[0] > max_elements:
        return fail(cursor, TOO_MANY_ELEMENTS, 0, 0)
    record.headers = cursor.position
    record.header_names_bytes = record.header_values_bytes = 0
    record.has_null_header = False
    for i in range(record.header_count):
        if not read_bytes(cursor, &start, &size):
            return False
        if size < 0:
            return fail(cursor, NULL_HEADER_KEY, 0, 0)
        if not is_utf8(cursor.data + start, size):
            return fail(cursor, BAD_HEADER_KEY, start, size)
        if size > 0 and memchr(cursor.data + start, 0, <size_t>size) != NULL:
            has_nul[0] = True
        record.header_names_bytes += 4 + size
        if not read_bytes(cursor, &start, &size):
            return False
        if size < 0:
            record.has_null_header = True
            size = 0
        record.header_values_bytes += 4 + size
    if cursor.position != end:
        return fail(cursor, WRONG_LENGTH, length, length + cursor.position - end)
    return True


cdef inline int64_t variable_bytes(const Record *record) noexcept nogil:
    """What a row takes after its template: key, value and the two arrays."""
    cdef int64_t size = 16  # four lengths
    if record.key_length > 0:
        size += record.key_length
    if record.value_length > 0:
        size += record.value_length
    if record.header_count > 0:
        size += 2 * (ARRAY_HEADER_BYTES - 4) + record.header_names_bytes + record.header_values_bytes
    return size


cdef bint scan(
    Cursor *cursor, int64_t count, int64_t base_timestamp, int64_t max_elements, Summary *summary
) noexcept nogil:
    cdef Record record
    cdef int64_t elements = count
    cdef int64_t index
    for index in range(count):
        cursor.index = index
        if not read_record(cursor, base_timestamp, &elements, max_elements, &record, &summary.has_nul):
            return False
        if index == 0 or record.timestamp < summary.min_timestamp:
            summary.min_timestamp = record.timestamp
        if index == 0 or record.timestamp > summary.max_timestamp:
            summary.max_timestamp = record.timestamp
        if record.timestamp != NO_TIMESTAMP and (
            summary.min_present_timestamp == NO_TIMESTAMP or record.timestamp < summary.min_present_timestamp
        ):
            summary.min_present_timestamp = record.timestamp
        if record.key_length < 0:
            summary.lacks_key = True
        summary.variable_bytes += variable_bytes(&record)
    if cursor.position != cursor.end:
        return fail(cursor, BYTES_LEFT, cursor.end - cursor.position, 0)
    return True


cdef inline uint8_t *put_bytes(uint8_t *to, const uint8_t *data, int64_t start, int64_t length) noexcept nogil:
    """A field of COPY: its length, -1 for null, then its bytes."""
    if length < 0:
        put_int32(to, 0xFFFFFFFF)
        return to + 4
    put_int32(to, <uint32_t>length)
    memcpy(to + 4, data + start, <size_t>length)
    return to + 4 + length


cdef inline uint8_t *put_array_header(
    uint8_t *to, int64_t elements_bytes, bint has_null, uint32_t oid, int64_t count
) noexcept nogil:
    put_int32(to, <uint32_t>(ARRAY_HEADER_BYTES - 4 + elements_bytes))
    put_int32(to + 4, 1)
    put_int32(to + 8, has_null)
    put_int32(to + 12, oid)
    put_int32(to + 16, <uint32_t>count)
    put_int32(to + 20, 1)
    return to + ARRAY_HEADER_BYTES


cdef bint put_headers(uint8_t *to, Cursor *cursor, const Record *record) noexcept nogil:
    """header_names and header_values of a record that `read_record` has just read."""
    cdef Cursor again = cursor[0]
    cdef uint8_t *names = put_array_header(to, record.header_names_bytes, False, TEXT_OID, record.header_count)
    cdef uint8_t *values = put_array_header(
        names + record.header_names_bytes,
        record.header_values_bytes,
        record.has_null_header,
        BYTEA_OID,
        record.header_count,
    )
    cdef int64_t start, length, i
    again.position = record.headers
    for i in range(record.header_count):
        if not read_bytes(&again, &start, &length):
            return False
        names = put_bytes(names, cursor.data, start, length)
        if not read_bytes(&again, &start, &length):
            return False
        values = put_bytes(values, cursor.data, start, length)
    return True


cdef struct Layout:
    const uint8_t *template
    int64_t template_bytes
    int64_t offset_at
    int64_t timestamp_at
    int64_t sequence_at  # negative: rows have none
    int64_t base_offset
    int64_t base_sequence
    int64_t append_time_ms
    bint uses_append_time


cdef bint write(
    Cursor *cursor, int64_t count, const uint8_t *chosen, int64_t base_timestamp, int64_t max_elements,
    const Layout *layout, uint8_t *to, uint8_t *end
) noexcept nogil:
    cdef Record record
    cdef bint has_nul = False
    cdef int64_t elements = count
    cdef int64_t place, timestamp
    cdef int64_t index = -1
    for place in range(count):
        cursor.index = place
        if not read_record(cursor, base_timestamp, &elements, max_elements, &record, &has_nul):
            return False
        if chosen != NULL and not chosen[place]:
            continue
        index += 1
        if layout.template_bytes + variable_bytes(&record) > end - to:
            return fail(cursor, OUT_OF_ROOM, 0, 0)
        memcpy(to, layout.template, <size_t>layout.template_bytes)
        timestamp = layout.append_time_ms if layout.uses_append_time else record.timestamp
        put_int64(to + layout.offset_at, <uint64_t>(layout.base_offset + index))
        put_int64(to + layout.timestamp_at, <uint64_t>(timestamp - POSTGRES_EPOCH_MS) * 1000)
        if layout.sequence_at >= 0:
            put_int32(to + layout.sequence_at, <uint32_t>((layout.base_sequence + index) & MAX_INT32))
        to = put_bytes(to + layout.template_bytes, cursor.data, record.key, record.key_length)
        to = put_bytes(to, cursor.data, record.value, record.value_length)
        if record.header_count > 0:
            if not put_headers(to, cursor, &record):
                return False
            to += 2 * ARRAY_HEADER_BYTES + record.header_names_bytes + record.header_values_bytes
        else:
            put_int32(to, 0xFFFFFFFF)
            put_int32(to + 4, 0xFFFFFFFF)
            to += 8
    if to != end:
        return fail(cursor, OUT_OF_ROOM, 0, 0)
    return True


cdef class Scan:
    """The records of one batch, proven readable; it holds on to their bytes."""

    def __init__(self):
        raise TypeError("made by scan_records")

    def __dealloc__(self):
        if self._has_view:
            PyBuffer_Release(&self._view)

    cdef Cursor cursor(self):
        cdef Cursor cursor
        cursor.data = <const uint8_t *>self._view.buf
        cursor.position = 0
        cursor.end = self._view.len
        cursor.fault = NO_FAULT
        cursor.index = cursor.first = cursor.second = 0
        return cursor


def scan_records(records, *, int64_t count, int64_t base_timestamp, int64_t max_elements):
    """Read all of `count` records; raises what is wrong with the first that is."""
    return scanned(records, count, base_timestamp, max_elements)


cdef Scan scanned(records, int64_t count, int64_t base_timestamp, int64_t max_elements):
    cdef Scan found = Scan.__new__(Scan)
    cdef Summary summary
    cdef Cursor cursor
    cdef bint is_good
    PyObject_GetBuffer(records, &found._view, PyBUF_SIMPLE)
    found._has_view = True
    if found._view.len // SMALLEST_RECORD_BYTES < count:
        raise InvalidRecord(f"{count} records cannot be in {found._view.len} bytes")
    cursor = found.cursor()
    summary.min_timestamp = summary.min_present_timestamp = summary.max_timestamp = NO_TIMESTAMP
    summary.variable_bytes = 0
    summary.lacks_key = summary.has_nul = False
    if found._view.len < LARGE_BYTES:
        is_good = scan(&cursor, count, base_timestamp, max_elements, &summary)
    else:
        with nogil:
            is_good = scan(&cursor, count, base_timestamp, max_elements, &summary)
    if not is_good:
        raise refusal(&cursor, count, max_elements)
    if summary.min_timestamp < NO_TIMESTAMP or summary.max_timestamp > MAX_TIMESTAMP_MS:
        raise InvalidTimestamp(
            f"timestamps from {summary.min_timestamp} to {summary.max_timestamp} ms; "
            f"possible are -1 (none) and 0 to {MAX_TIMESTAMP_MS}"
        )
    if summary.has_nul:
        raise InvalidRecord("a header's key contains NUL, which PostgreSQL text cannot hold")
    found._count = found._chosen_count = count
    found._base_timestamp = base_timestamp
    found._max_elements = max_elements
    found._variable_bytes = summary.variable_bytes
    found.min_timestamp = summary.min_present_timestamp
    found.max_timestamp = summary.max_timestamp
    found.lacks_key = summary.lacks_key
    return found


# Of a batch's attributes: compression, LogAppendTime and control records are looked at more closely.
cdef uint16_t UNUSUAL_BITS = 0x07 | 0x08 | 0x20


def read_batch(
    bytes records not None, *, Py_ssize_t max_batch_bytes, Py_ssize_t max_plain_bytes, int64_t max_elements
):
    """The fields of `batches.ProducedBatch`; None where the batch is compressed, or its header is not as it should be."""
    return read_fields(records, max_batch_bytes, max_plain_bytes, max_elements)


cdef object read_fields(bytes records, Py_ssize_t max_batch_bytes, Py_ssize_t max_plain_bytes, int64_t max_elements):
    cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(records)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(records)
    cdef uint16_t attributes
    cdef int64_t producer_id
    cdef int32_t record_count, base_sequence, producer_epoch
    if size < BATCH_HEADER_BYTES or size > max_batch_bytes or size - BATCH_HEADER_BYTES > max_plain_bytes:
        return None
    # One batch from offset 0, as long as it says, of the one format served.
    if get_int64(data) != 0 or get_int32(data + 8) != <uint32_t>(size - 12) or data[16] != 2:
        return None
    attributes = get_int16(data + 21)
    record_count = <int32_t>get_int32(data + 57)
    if attributes & UNUSUAL_BITS or record_count <= 0 or record_count > max_elements:
        return None
    if <int32_t>get_int32(data + 23) != record_count - 1:
        return None
    producer_id = <int64_t>get_int64(data + 43)
    producer_epoch = <int16_t>get_int16(data + 51)
    base_sequence = <int32_t>get_int32(data + 53)
    if producer_id < 0:
        producer_id = producer_epoch = base_sequence = -1
    elif producer_epoch < 0 or base_sequence < 0:
        return None
    view = memoryview(records)
    if crc32c(view[21:]) != get_int32(data + 17):
        return None
    scan = scanned(view[BATCH_HEADER_BYTES:], record_count, <int64_t>get_int64(data + 27), max_elements)
    return (
        records,
        attributes,
        producer_id,
        producer_epoch,
        base_sequence,
        record_count,
        size - BATCH_HEADER_BYTES,
        scan,
        producer_id >= 0,
        bool(attributes & TRANSACTIONAL_BIT),
    )


cdef object refusal(const Cursor *cursor, int64_t count, int64_t max_elements):
    cdef Fault fault = cursor.fault
    if fault == ENDS_INSIDE_NUMBER:
        return InvalidRecord("the records end inside a number")
    if fault == NUMBER_TOO_LONG:
        return InvalidRecord(f"a number of more than {cursor.first} bits")
    if fault == FIELD_TOO_LONG:
        return InvalidRecord(f"a field claims {cursor.first} bytes, {cursor.second} are left")
    if fault == WRONG_DELTA:
        return InvalidRecord(f"record {cursor.index} has offset delta {cursor.first}")
    if fault == NEGATIVE_HEADERS:
        return InvalidRecord(f"record {cursor.index} has {cursor.first} headers")
    if fault == TOO_MANY_ELEMENTS:
        return MessageTooLarge(f"more than {max_elements} records and headers in one batch")
    if fault == WRONG_LENGTH:
        return InvalidRecord(f"record {cursor.index} says it has {cursor.first} bytes, it has {cursor.second}")
    if fault == BYTES_LEFT:
        return InvalidRecord(f"{cursor.first} bytes follow the last of {count} records")
    if fault == NULL_HEADER_KEY:
        return InvalidRecord("a header's key is null")
    if fault == BAD_HEADER_KEY:
        shown = PyBytes_FromStringAndSize(<const char *>cursor.data + cursor.first, min(cursor.second, 40))
        return InvalidRecord(f"a header's key is not UTF-8: {shown!r}")
    return RuntimeError("records changed after they were read")


def find_headers(Scan scan not None, tuple names not None):
    """For each record, the value of the last header of each name; None where there is none."""
    cdef Cursor cursor = scan.cursor()
    cdef Cursor headers
    cdef Record record
    cdef bint has_nul = False
    cdef int64_t elements = scan._count
    cdef int64_t place, i, start, length, value, value_length
    cdef bytes name
    found = []
    for place in range(scan._count):
        cursor.index = place
        if not read_record(&cursor, scan._base_timestamp, &elements, scan._max_elements, &record, &has_nul):
            raise refusal(&cursor, scan._count, scan._max_elements)
        values = [None] * len(names)
        headers = cursor
        headers.position = record.headers
        for i in range(record.header_count):
            if not (read_bytes(&headers, &start, &length) and read_bytes(&headers, &value, &value_length)):
                raise refusal(&headers, scan._count, scan._max_elements)
            for position, name in enumerate(names):
                if len(name) == length and memcmp(PyBytes_AS_STRING(name), cursor.data + start, <size_t>length) == 0:
                    values[position] = None if value_length < 0 else PyBytes_FromStringAndSize(
                        <const char *>cursor.data + value, value_length
                    )
        found.append(tuple(values))
    return found


def select_records(Scan scan not None, places):
    """Only the records at these places, which grow."""
    cdef Scan selected = Scan.__new__(Scan)
    cdef Cursor cursor = scan.cursor()
    cdef Record record
    cdef bint has_nul = False
    cdef int64_t elements = scan._count
    cdef int64_t place
    if scan._chosen is not None:
        raise ValueError("records were selected before")
    chosen = bytearray(scan._count)
    for each in places:
        chosen[each] = 1
    PyObject_GetBuffer(scan._view.obj, &selected._view, PyBUF_SIMPLE)
    selected._has_view = True
    selected._count = scan._count
    selected._chosen_count = len(places)
    selected._chosen = bytes(chosen)
    selected._base_timestamp = scan._base_timestamp
    selected._max_elements = scan._max_elements
    selected._variable_bytes = 0
    selected.min_timestamp = selected.max_timestamp = NO_TIMESTAMP
    selected.lacks_key = False
    for place in range(scan._count):
        cursor.index = place
        if not read_record(&cursor, scan._base_timestamp, &elements, scan._max_elements, &record, &has_nul):
            raise refusal(&cursor, scan._count, scan._max_elements)
        if chosen[place]:
            selected._variable_bytes += variable_bytes(&record)
            selected.lacks_key = selected.lacks_key or record.key_length < 0
            if record.timestamp != NO_TIMESTAMP:
                if selected.min_timestamp == NO_TIMESTAMP or record.timestamp < selected.min_timestamp:
                    selected.min_timestamp = record.timestamp
                if record.timestamp > selected.max_timestamp:
                    selected.max_timestamp = record.timestamp
    return selected


def write_rows(
    Scan scan not None,
    bytes template not None,
    *,
    int64_t offset_at,
    int64_t timestamp_at,
    int64_t sequence_at,
    int64_t base_offset,
    int64_t base_sequence,
    append_time_ms,
):
    """The records as COPY BINARY tuples: each the template with offset, timestamp and sequence set, then key, value
    and headers. `sequence_at` is -1 where rows have no sequence."""
    cdef int64_t size_bytes = rows_bytes(scan, len(template))
    rows = PyBytes_FromStringAndSize(NULL, size_bytes)
    put_rows(
        scan,
        template,
        offset_at,
        timestamp_at,
        sequence_at,
        base_offset,
        base_sequence,
        append_time_ms,
        <uint8_t *>PyBytes_AS_STRING(rows),
    )
    return rows


cdef int64_t rows_bytes(Scan scan, int64_t template_bytes):
    return scan._chosen_count * template_bytes + scan._variable_bytes


cdef int put_rows(
    Scan scan,
    bytes template,
    int64_t offset_at,
    int64_t timestamp_at,
    int64_t sequence_at,
    int64_t base_offset,
    int64_t base_sequence,
    append_time_ms,
    uint8_t *to,
) except -1:
    cdef Layout layout
    cdef Cursor cursor = scan.cursor()
    cdef const uint8_t *chosen = NULL
    cdef int64_t size_bytes
    cdef bint is_good
    layout.template = <const uint8_t *>PyBytes_AS_STRING(template)
    layout.template_bytes = len(template)
    if (
        not 0 <= offset_at <= layout.template_bytes - 8
        or not 0 <= timestamp_at <= layout.template_bytes - 8
        or not -1 <= sequence_at <= layout.template_bytes - 4
    ):
        raise ValueError("a place outside the template")
    layout.offset_at = offset_at
    layout.timestamp_at = timestamp_at
    layout.sequence_at = sequence_at
    layout.base_offset = base_offset
    layout.base_sequence = base_sequence
    layout.uses_append_time = append_time_ms is not None
    layout.append_time_ms = 0 if append_time_ms is None else append_time_ms
    size_bytes = rows_bytes(scan, layout.template_bytes)
    if scan._chosen is not None:
        chosen = <const uint8_t *>PyBytes_AS_STRING(scan._chosen)
    if size_bytes < LARGE_BYTES:
        is_good = write(
            &cursor, scan._count, chosen, scan._base_timestamp, scan._max_elements, &layout, to, to + size_bytes
        )
    else:
        with nogil:
            is_good = write(
                &cursor, scan._count, chosen, scan._base_timestamp, scan._max_elements, &layout, to, to + size_bytes
            )
    if not is_good:
        raise refusal(&cursor, scan._count, scan._max_elements)
    return 0


# --- rows to batches -------------------------------------------------------------------------

# libpq's PQgetvalue, PQgetlength and PQgetisnull, of the libpq that made the result.
ctypedef const uint8_t *(*GetValue)(const void *result, int row, int column) noexcept nogil
ctypedef int (*GetNumber)(const void *result, int row, int column) noexcept nogil

cdef enum Column:  # as in sql/log/read_messages.sql
    OFFSET
    TIMESTAMP
    TIMESTAMP_TYPE
    KEY
    VALUE
    HEADER_NAMES
    HEADER_VALUES
    PRODUCER_ID
    PRODUCER_EPOCH
    SEQUENCE
    IS_TRANSACTIONAL
    CONTROL_TYPE

cdef int64_t LARGEST_RECORD_HEAD_BYTES = 5 + 1 + 10 + 5 + 5 + 5 + 5  # lengths, attributes, timestamp and offset
cdef int64_t LARGEST_HEADER_HEAD_BYTES = 5 + 5
cdef uint16_t LOG_APPEND_TIME_BIT = 0x08
cdef uint16_t CONTROL_BIT = 0x20


cdef struct Result:
    const void *address
    int64_t count
    GetValue get_value
    GetNumber get_length
    GetNumber get_is_null


cdef struct Field:
    const uint8_t *data
    int64_t length  # negative: null


cdef struct Row:
    int64_t offset
    int64_t timestamp
    int64_t timestamp_type
    int64_t producer_id  # negative: null, as in a batch; likewise epoch, sequence and control type
    int64_t producer_epoch
    int64_t sequence
    int64_t control_type
    bint is_transactional
    Field key
    Field value
    Field header_names
    Field header_values


cdef struct Batch:
    uint8_t *start
    Row first
    int64_t first_sequence  # of the record at offset 0, were the batch to reach so far
    int64_t last_offset
    int64_t max_timestamp
    int64_t count


cdef inline Field read_field(const Result *result, int64_t row, Column column) noexcept nogil:
    cdef Field field
    field.length = result.get_length(result.address, <int>row, column)
    if field.length == 0 and result.get_is_null(result.address, <int>row, column):
        field.length = -1
    field.data = result.get_value(result.address, <int>row, column)
    return field


cdef inline bint read_int(
    const Result *result, int64_t row, Column column, int size, bint may_be_null, int64_t *value
) noexcept nogil:
    cdef int length = result.get_length(result.address, <int>row, column)
    cdef const uint8_t *data
    if length != size:
        value[0] = -1
        return length == 0 and may_be_null
    data = result.get_value(result.address, <int>row, column)
    if size == 8:
        value[0] = <int64_t>get_int64(data)
    elif size == 4:
        value[0] = <int32_t>get_int32(data)
    elif size == 2:
        value[0] = <int64_t>(<short>get_int16(data))
    else:
        value[0] = data[0]
    return True


cdef bint read_row(const Result *result, int64_t index, Row *row) noexcept nogil:
    cdef int64_t microseconds, is_transactional
    if not (
        read_int(result, index, OFFSET, 8, False, &row.offset)
        and read_int(result, index, TIMESTAMP, 8, False, &microseconds)
        and read_int(result, index, TIMESTAMP_TYPE, 2, False, &row.timestamp_type)
        and read_int(result, index, PRODUCER_ID, 8, True, &row.producer_id)
        and read_int(result, index, PRODUCER_EPOCH, 2, True, &row.producer_epoch)
        and read_int(result, index, SEQUENCE, 4, True, &row.sequence)
        and read_int(result, index, IS_TRANSACTIONAL, 1, False, &is_transactional)
        and read_int(result, index, CONTROL_TYPE, 2, True, &row.control_type)
    ):
        return False
    row.timestamp = microseconds // 1000 + POSTGRES_EPOCH_MS
    if microseconds < 0 and microseconds % 1000 != 0:  # C rounds towards zero
        row.timestamp -= 1
    row.is_transactional = is_transactional != 0
    row.key = read_field(result, index, KEY)
    row.value = read_field(result, index, VALUE)
    row.header_names = read_field(result, index, HEADER_NAMES)
    row.header_values = read_field(result, index, HEADER_VALUES)
    return True


cdef inline bint begin_array(const Field *field, Cursor *cursor, int64_t *count) noexcept nogil:
    """A one-dimensional array in binary form: how many elements it has, and a cursor at the first of them."""
    cdef int64_t dimensions
    cursor.data = field.data
    cursor.end = field.length
    cursor.position = 20
    count[0] = 0
    if field.length < 0:
        return True
    if field.length < 12:
        return False
    dimensions = get_int32(field.data)
    if dimensions == 0:
        return True
    if dimensions != 1 or field.length < 20:
        return False
    count[0] = get_int32(field.data + 12)
    return count[0] <= (field.length - 20) // 4


cdef inline bint next_element(Cursor *cursor, Field *element) noexcept nogil:
    if cursor.end - cursor.position < 4:
        return False
    element.length = <int32_t>get_int32(cursor.data + cursor.position)
    cursor.position += 4
    element.data = cursor.data + cursor.position
    if element.length > cursor.end - cursor.position:
        return False
    if element.length > 0:
        cursor.position += element.length
    return True


cdef inline int64_t number_bytes(int64_t value) noexcept nogil:
    cdef uint64_t number = (<uint64_t>value << 1) ^ (0 - (<uint64_t>value >> 63))
    cdef int64_t size = 1
    while number >= 0x80:
        number >>= 7
        size += 1
    return size


cdef inline uint8_t *put_number(uint8_t *to, int64_t value) noexcept nogil:
    """A zigzag varint."""
    cdef uint64_t number = (<uint64_t>value << 1) ^ (0 - (<uint64_t>value >> 63))
    while number >= 0x80:
        to[0] = <uint8_t>(number | 0x80)
        to += 1
        number >>= 7
    to[0] = <uint8_t>number
    return to + 1


cdef inline int64_t field_bytes(const Field *field) noexcept nogil:
    return number_bytes(field.length) + (field.length if field.length > 0 else 0)


cdef inline uint8_t *put_field(uint8_t *to, const Field *field) noexcept nogil:
    to = put_number(to, field.length)
    if field.length > 0:
        memcpy(to, field.data, <size_t>field.length)
        to += field.length
    return to


cdef uint8_t *put_record_headers(uint8_t *to, const Row *row, int64_t *size_bytes) noexcept nogil:
    """The headers of a record, or only how many bytes they take where `to` is NULL; NULL if they cannot be read."""
    cdef Cursor names, values
    cdef Field name, value
    cdef int64_t count, value_count, i
    cdef bint is_measured = to == NULL
    if not (begin_array(&row.header_names, &names, &count) and begin_array(&row.header_values, &values, &value_count)):
        return NULL
    if count != value_count:
        return NULL
    if is_measured:
        size_bytes[0] = number_bytes(count)
    else:
        to = put_number(to, count)
    for i in range(count):
        if not (next_element(&names, &name) and next_element(&values, &value)):
            return NULL
        if name.length < 0:
            name.length = 0
        if value.length < 0:
            value.length = -1
        if is_measured:
            size_bytes[0] += field_bytes(&name) + field_bytes(&value)
        else:
            to = put_field(put_field(to, &name), &value)
    return <uint8_t *>row if is_measured else to


cdef inline bint belongs(const Batch *batch, const Row *row) noexcept nogil:
    """Whether all that a batch has only once is the same in this row."""
    cdef const Row *first = &batch.first
    return (
        row.producer_id == first.producer_id
        and row.producer_epoch == first.producer_epoch
        and row.is_transactional == first.is_transactional
        # A record's sequence follows from its offset, so gaps that compaction left do no harm.
        and (row.sequence < 0) == (first.sequence < 0)
        and (row.sequence < 0 or ((row.sequence - row.offset) & MAX_INT32) == batch.first_sequence)
        # A marker is alone in its batch; LogAppendTime is one for all of a batch.
        and row.control_type < 0
        and first.control_type < 0
        and row.timestamp_type == first.timestamp_type
        and (row.timestamp_type == 0 or row.timestamp == first.timestamp)
        and (row.timestamp == NO_TIMESTAMP) == (first.timestamp == NO_TIMESTAMP)
        and row.offset - first.offset <= MAX_INT32
    )


cdef void end_batch(const Batch *batch, const uint8_t *end, int32_t leader_epoch) noexcept nogil:
    """Write the batch's header, but for its CRC."""
    cdef uint8_t *to = batch.start
    cdef const Row *first = &batch.first
    cdef uint16_t attributes = 0
    if first.is_transactional:
        attributes |= TRANSACTIONAL_BIT
    if first.control_type >= 0:
        attributes |= CONTROL_BIT
    if first.timestamp_type != 0:
        attributes |= LOG_APPEND_TIME_BIT
    put_int64(to, <uint64_t>first.offset)
    put_int32(to + 8, <uint32_t>(end - to - 12))
    put_int32(to + 12, <uint32_t>leader_epoch)
    to[16] = 2
    put_int32(to + 17, 0)
    put_int16(to + 21, attributes)
    put_int32(to + 23, <uint32_t>(batch.last_offset - first.offset))
    put_int64(to + 27, <uint64_t>first.timestamp)
    put_int64(to + 35, <uint64_t>batch.max_timestamp)
    put_int64(to + 43, <uint64_t>first.producer_id)
    put_int16(to + 51, <uint16_t>first.producer_epoch)
    put_int32(to + 53, <uint32_t>first.sequence)
    put_int32(to + 57, <uint32_t>batch.count)


cdef int64_t bound_bytes(const Result *result) noexcept nogil:
    """No fewer bytes than the rows take as batches, however many of these there are."""
    cdef int64_t total = 0
    cdef int64_t index, size
    for index in range(result.count):
        total += BATCH_HEADER_BYTES + LARGEST_RECORD_HEAD_BYTES
        total += result.get_length(result.address, <int>index, KEY)
        total += result.get_length(result.address, <int>index, VALUE)
        size = result.get_length(result.address, <int>index, HEADER_NAMES)
        if size > 0:  # each element has a length of four bytes in the arrays
            size += result.get_length(result.address, <int>index, HEADER_VALUES)
            total += size + size // 8 * (LARGEST_HEADER_HEAD_BYTES - 8)
    return total


cdef int64_t encode(const Result *result, int32_t leader_epoch, uint8_t *start, uint8_t *end) noexcept nogil:
    """Write the rows as batches; returns where they end, or -1 if a row is not as it should be."""
    cdef Batch batch
    cdef Row row
    cdef uint8_t *to = start
    cdef int64_t index, size, timestamp_delta, offset_delta
    cdef int64_t headers_bytes = 0
    batch.count = 0
    for index in range(result.count):
        if not read_row(result, index, &row):
            return -1
        if batch.count == 0 or not belongs(&batch, &row):
            if batch.count > 0:
                end_batch(&batch, to, leader_epoch)
            if end - to < BATCH_HEADER_BYTES:
                return -1
            batch.start = to
            batch.first = row
            batch.first_sequence = (row.sequence - row.offset) & MAX_INT32
            batch.max_timestamp = row.timestamp
            batch.count = 0
            to += BATCH_HEADER_BYTES
        timestamp_delta = <int64_t>(<uint64_t>row.timestamp - <uint64_t>batch.first.timestamp)
        offset_delta = row.offset - batch.first.offset
        size = 1 + number_bytes(timestamp_delta) + number_bytes(offset_delta)
        size += field_bytes(&row.key) + field_bytes(&row.value)
        if row.header_names.length < 0:
            size += 1
        else:
            if put_record_headers(NULL, &row, &headers_bytes) == NULL:
                return -1
            size += headers_bytes
        if end - to < number_bytes(size) + size:
            return -1
        to = put_number(to, size)
        to[0] = 0  # attributes
        to = put_number(put_number(to + 1, timestamp_delta), offset_delta)
        to = put_field(put_field(to, &row.key), &row.value)
        if row.header_names.length < 0:
            to[0] = 0
            to += 1
        else:
            to = put_record_headers(to, &row, &headers_bytes)
        batch.count += 1
        batch.last_offset = row.offset
        if row.timestamp > batch.max_timestamp:
            batch.max_timestamp = row.timestamp
    if batch.count > 0:
        end_batch(&batch, to, leader_epoch)
    return to - start


def encode_rows(rows, *, int32_t leader_epoch):
    """The rows as uncompressed batches, as few as their producers, timestamps and markers allow."""
    cdef Result result
    cdef int64_t room_bytes, size_bytes, position, length
    cdef PyObject *data = NULL
    cdef uint8_t *start
    if rows.address == 0:
        return plain_transcoder.encode_rows(rows, leader_epoch=leader_epoch)
    result.address = <const void *><uintptr_t>rows.address
    result.count = rows.count
    get_value, get_length, get_is_null = rows.functions
    result.get_value = <GetValue><uintptr_t>get_value
    result.get_length = <GetNumber><uintptr_t>get_length
    result.get_is_null = <GetNumber><uintptr_t>get_is_null
    room_bytes = bound_bytes(&result)
    data = new_bytes(NULL, room_bytes)
    start = <uint8_t *>bytes_data(data)
    if room_bytes < LARGE_BYTES:
        size_bytes = encode(&result, leader_epoch, start, start + room_bytes)
    else:
        with nogil:
            size_bytes = encode(&result, leader_epoch, start, start + room_bytes)
    if size_bytes < 0:
        Py_XDECREF(data)
        raise ValueError("a row is not as the query promises")
    resize_bytes(&data, size_bytes)
    start = <uint8_t *>bytes_data(data)
    batches = <object>data
    Py_XDECREF(data)
    # Nobody else has seen the bytes yet: they may still be written to.
    view = memoryview(batches)
    position = 0
    while position < size_bytes:
        length = 12 + get_int32(start + position + 8)
        put_int32(start + position + 17, crc32c(view[position + 21 : position + length]))
        position += length
    return batches
