#!lua flags=no-writes
-- Reads a job's payload. Returns nothing if the job is not held under that token.
local state, payload = unpack(KEYS)
local id, token = unpack(ARGV)
if string.match(redis.call('HGET', state, id) or '-', '^%S+') ~= token then return false end
return redis.call('HGET', payload, id)
