-- Begin the keys of the records that this commit appends, none of which is known yet; if one is, a unique violation
-- undoes everything.
-- Locks: the keys' rows, in the order given (callers sort); waits for others that begin one of them.
-- Returns: nothing of use.
-- Integers: {separator}, the code of a character that is in none of them; per key {batches} (which of the following,
-- counted from 1) and {offsets}; per batch {topic_ids}, {partitions}, {producer_ids} (-1: done at once), {retentions_ms}.
-- Hexadecimal digits: {tenants} and {keys}, each joined by the separator, in UTF-8.
SELECT kafka.begin_new_keys({separator}, decode('{tenants}', 'hex'), decode('{keys}', 'hex'),
    '{{{batches}}}', '{{{offsets}}}', '{{{topic_ids}}}', '{{{partitions}}}', '{{{producer_ids}}}',
    '{{{retentions_ms}}}')
