# What other compiled modules may use of the transcoder.

from libc.stdint cimport int64_t, uint8_t


cdef enum Fault:
    NO_FAULT
    ENDS_INSIDE_NUMBER
    NUMBER_TOO_LONG  # first: bits
    FIELD_TOO_LONG  # first: claimed, second: left
    WRONG_DELTA  # first: the delta
    NEGATIVE_HEADERS  # first: how many
    TOO_MANY_ELEMENTS
    WRONG_LENGTH  # first: claimed, second: found
    BYTES_LEFT  # first: how many
    NULL_HEADER_KEY
    BAD_HEADER_KEY  # first: position, second: length
    OUT_OF_ROOM


cdef struct Cursor:
    const uint8_t *data
    int64_t position
    int64_t end
    Fault fault
    int64_t index  # of the record it is in
    int64_t first
    int64_t second


cdef class Scan:
    cdef Py_buffer _view
    cdef bint _has_view
    cdef int64_t _count  # of the records in the bytes
    cdef int64_t _chosen_count
    cdef bytes _chosen  # a byte per record; None: all of them
    cdef int64_t _base_timestamp
    cdef int64_t _max_elements
    cdef int64_t _variable_bytes
    cdef readonly int64_t min_timestamp
    cdef readonly int64_t max_timestamp
    cdef readonly bint lacks_key

    cdef Cursor cursor(self)


# How much room the rows of a batch take, each with a template of so many bytes before its key and value.
cdef int64_t rows_bytes(Scan scan, int64_t template_bytes)

# Write them; there must be room.
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
) except -1

# The fields of `batches.ProducedBatch`, or None: see `read_batch`.
cdef object read_fields(bytes records, Py_ssize_t max_batch_bytes, Py_ssize_t max_plain_bytes, int64_t max_elements)
