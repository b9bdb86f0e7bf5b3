#!lua flags=allow-oom
-- Undoes a take whose reply never came, and keeps it from being carried out late.
-- KEYS: due claimed running dead state payload lane
-- ARGV: seq, channel, token. Returns how many jobs wait again.
local due, claimed, running, dead, state, payload, lane = unpack(KEYS)
local seq, channel, token = ARGV[1], ARGV[2], ARGV[3]

local returned = 0
local last = redis.call('GET', lane)
if last then
  local past, ids = string.match(last, '^(%d+) (.*)$')
  if tonumber(past) > tonumber(seq) then return 0 end
  if past == seq then
    for _, id in ipairs(cmsgpack.unpack(ids)) do
      local owner, attempts, at = string.match(redis.call('HGET', state, id) or '', '^(%S+) (%d+) (%d+)$')
      if owner == token and redis.call('ZREM', claimed, id) == 1 then
        redis.call('ZADD', due, at, id)
        redis.call('HSET', state, id, '- ' .. attempts .. ' ' .. at)
        returned = returned + 1
      end
    end
  end
end
redis.call('SET', lane, seq .. ' ' .. cmsgpack.pack({}), 'PX', 3600000)
if returned > 0 then redis.call('PUBLISH', channel, '') end
return returned
