#!lua flags=no-writes
-- Reads a page of a partition's dead jobs, oldest death first, with a limited number of bytes of payload.
-- `bytes_left` is how many bytes of payload the answer may have. Returns for each job its id, payload, the
-- size of that, attempts, the time of its death, and its last error. A payload that alone is too large is left
-- out.
local dead, state, payload = unpack(KEYS)
local offset, wanted, bytes_left = unpack(ARGV)
offset, wanted, bytes_left = tonumber(offset), math.min(tonumber(wanted), 100), tonumber(bytes_left)
local found = redis.call('ZRANGE', dead, offset, offset + wanted - 1, 'WITHSCORES')
local answer, whole = {}, bytes_left
for entry = 1, #found, 2 do
  local id = found[entry]
  -- In a cluster this entry, the last, is nobody's.
  if id == '' then break end
  local size = redis.call('HSTRLEN', payload, id)
  if size > bytes_left and size <= whole then break end
  -- What Redis has lost of it is nothing.
  local attempts, failure = string.match(redis.call('HGET', state, id) or '', '^%S+ (%d+) %d+ [%d-]+ ?(.*)$')
  if not attempts or #attempts > 9 then attempts = '0' end
  local body = ''
  if size <= bytes_left then
    body = redis.call('HGET', payload, id) or ''
    bytes_left = bytes_left - size
  end
  local died = string.format('%.0f', math.max(0, math.min(found[entry + 1], 9e15)))
  for _, value in ipairs({ string.sub(id, 1, 1024), body, tostring(size), attempts, died, failure or '' }) do
    answer[#answer + 1] = value
  end
end
return answer
