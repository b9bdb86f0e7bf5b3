#!lua flags=no-writes
-- Reads a job's payload. KEYS: state payload. ARGV: id, token. Returns nothing if the job is not held under that token.
local id = ARGV[1]
if string.match(redis.call('HGET', KEYS[1], id) or '-', '^%S+') ~= ARGV[2] then return false end
return redis.call('HGET', KEYS[2], id)
