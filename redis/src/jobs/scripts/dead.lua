#!lua flags=allow-oom
-- Reads a page of a partition's dead jobs, oldest death first, until it has a megabyte of payload.
-- KEYS: dead state payload
-- ARGV: offset, limit. Returns for each job its id, payload, attempts and the time of its death.
local dead, state, payload = unpack(KEYS)
local offset, limit = tonumber(ARGV[1]), math.min(tonumber(ARGV[2]), 100)
local found = redis.call('ZRANGE', dead, offset, offset + limit - 1, 'WITHSCORES')
local reply, bytes = {}, 0
for entry = 1, #found, 2 do
  if bytes >= 1048576 then break end
  local id = found[entry]
  -- What Redis has lost of it is nothing.
  local attempts = string.match(redis.call('HGET', state, id) or '', '^%S+ (%d+)') or '0'
  local body = redis.call('HGET', payload, id) or ''
  for _, value in ipairs({ id, body, attempts, found[entry + 1] }) do reply[#reply + 1] = value end
  bytes = bytes + #body
end
return reply
