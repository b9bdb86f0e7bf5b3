#!lua flags=allow-oom
-- Moves the ends of leases that have not been moved since they were read.
-- KEYS: running or claimed. ARGV: how long the leases last from now on, then for each job its id and the end that was read.
-- Returns a digit for each job: 1 where the end was moved.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local till = string.format('%.0f', now + tonumber(ARGV[1]))
local answers = {}
for at = 2, #ARGV, 2 do
  local id, read = ARGV[at], ARGV[at + 1]
  local is_held = redis.call('ZSCORE', KEYS[1], id) == read and tonumber(read) > now
  if is_held then redis.call('ZADD', KEYS[1], till, id) end
  answers[#answers + 1] = is_held and '1' or '0'
end
return table.concat(answers)
