#!lua flags=no-writes
-- KEYS: due claimed running dead state. ARGV: id.
-- Returns where the job is, when it is or was due, its attempts so far, and its last error; nothing if there is no such job.
local id = ARGV[1]
local places = { 'waiting', 'waiting', 'running', 'dead' }
for place, name in ipairs(places) do
  local score = redis.call('ZSCORE', KEYS[place], id)
  if score then
    -- Of one whose state is lost or damaged: nothing.
    local attempts, at, failure = string.match(redis.call('HGET', KEYS[5], id) or '', '^%S+ (%d+) (%d+) %d+ ?(.*)$')
    if not attempts or #attempts > 9 or #at > 16 then attempts, at, failure = '0', '0', '' end
    if place == 1 then at = string.format('%.0f', math.max(0, math.min(score, 9e15))) end
    return { name, at, attempts, failure }
  end
end
return {}
