-- What the registry knows of keys that producers send.
-- Locks: none; who begins one of them proves that it is still so.   Returns: a row per key that is known.
SELECT k.topic_id, k.tenant, k.key, k.status, k.first_partition, k.first_offset, k.producer_id,
       coalesce(k.lease_until <= clock_timestamp(), false) AS is_lease_over
FROM unnest(%(topic_ids)s::int[], %(tenants)s::text[], %(keys)s::text[]) AS sent (topic_id, tenant, key)
JOIN kafka.idempotency_keys k
  ON k.topic_id = sent.topic_id AND k.group_id = '' AND k.tenant = sent.tenant AND k.key = sent.key
