#!lua flags=no-writes
-- Reads a job's payload. Returns nothing if another holds the job.
local state, payload = unpack(KEYS)
local id, holder = unpack(ARGV)
if string.match(redis.call('HGET', state, id) or '-', '^%S+') ~= holder then return false end
return redis.call('HGET', payload, id)
