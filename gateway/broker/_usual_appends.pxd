# What other compiled modules may use of appends.


cdef class Append:
    cdef readonly object key
    cdef readonly object batch
    cdef readonly object keys
    cdef readonly bint uses_log_append_time
    cdef readonly bint knows_abortable
    cdef readonly object outcome
    cdef object _producer_key
    cdef object _on_done

    cdef object know(self, outcome)
    cpdef settle(self, outcome)
