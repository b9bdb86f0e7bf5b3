#!lua flags=no-writes
-- Reads a page of a partition's waiting jobs, without payloads.
-- `of` is "due" or "claimed". Those that a worker has claimed are in no particular order.
-- Returns for each of up to 100 jobs its id, when it is due and its attempts so far.
local due, claimed, state = unpack(KEYS)
local of, offset = unpack(ARGV)
local set = of == 'due' and due or claimed
offset = tonumber(offset)
local found = redis.call('ZRANGE', set, offset, offset + 99, 'WITHSCORES')
-- In a cluster the last entry is nobody's.
if found[#found - 1] == '' then found[#found], found[#found - 1] = nil, nil end
if not found[1] then return {} end
local ids = {}
for entry = 1, #found, 2 do ids[#ids + 1] = found[entry] end
local states = redis.call('HMGET', state, unpack(ids))
local answer = {}
for n, id in ipairs(ids) do
  -- Of one whose state is lost or damaged: nothing.
  local attempts, at = string.match(states[n] or '', '^%S+ (%d+) (%d+)')
  if not attempts or #attempts > 9 or #at > 16 then attempts, at = '0', '0' end
  if set == due then at = string.format('%.0f', math.max(0, math.min(found[2 * n], 9e15))) end
  for _, value in ipairs({ string.sub(id, 1, 1024), at, attempts }) do answer[#answer + 1] = value end
end
return answer
