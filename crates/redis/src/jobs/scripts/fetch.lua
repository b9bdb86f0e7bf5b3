#!lua flags=allow-oom
-- Reads a part of a job's payload.
-- KEYS: state payload, and copy for a payload of which one is kept. ARGV: id, token, offset, length, how long to keep a copy in ms.
-- Returns nothing if the job is not held under that token.
local id, offset, length = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local payload, copy = KEYS[2], KEYS[3]
if string.match(redis.call('HGET', KEYS[1], id) or '-', '^%S+') ~= ARGV[2] then return false end
local size = redis.call('HSTRLEN', payload, id)
if not copy then
  return string.sub(redis.call('HGET', payload, id) or '', offset + 1, offset + length)
end
-- Redis reads a part of a string, but only all of a hash's field, and a script takes 5 ms for a megabyte of it.
if redis.call('EXISTS', copy) == 0 then
  redis.call('SET', copy, redis.call('HGET', payload, id), 'PX', ARGV[5])
end
local part = redis.call('GETRANGE', copy, offset, offset + length - 1)
if offset + length >= size then redis.call('UNLINK', copy) end
return part
