#!lua flags=no-writes
-- Returns where the job is, when it is or was due, its attempts so far, and its last error; nothing if there
-- is no such job.
local due, claimed, running, dead, state = unpack(KEYS)
local id = unpack(ARGV)
for _, found in ipairs({ { due, 'waiting' }, { claimed, 'waiting' }, { running, 'running' }, { dead, 'dead' } }) do
  local set, name = unpack(found)
  local score = redis.call('ZSCORE', set, id)
  if score then
    -- Of one whose state is lost or damaged: nothing.
    local attempts, at, failure = string.match(redis.call('HGET', state, id) or '', '^%S+ (%d+) (%d+) [%d-]+ ?(.*)$')
    if not attempts or #attempts > 9 or #at > 16 then attempts, at, failure = '0', '0', '' end
    if set == due then at = string.format('%.0f', math.max(0, math.min(score, 9e15))) end
    return { name, at, attempts, failure }
  end
end
return {}
