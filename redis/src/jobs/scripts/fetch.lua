#!lua flags=allow-oom
-- Reads a part of a job's payload.
-- KEYS: state payload. ARGV: id, token, offset, length. Returns nothing if the job is not held under that token.
local stored = redis.call('HGET', KEYS[1], ARGV[1]) or '-'
if string.match(stored, '^%S+') ~= ARGV[2] then return false end
local offset = tonumber(ARGV[3])
return string.sub(redis.call('HGET', KEYS[2], ARGV[1]) or '', offset + 1, offset + ARGV[4])
