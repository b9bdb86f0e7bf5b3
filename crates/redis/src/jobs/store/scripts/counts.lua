#!lua flags=no-writes
-- KEYS: due claimed running dead settings. Returns how many jobs of a partition wait, run and are dead, and 1 where it is paused.
local function jobs(set)
  -- In a cluster one entry is nobody's.
  return redis.call('ZCARD', set) - (redis.call('ZSCORE', set, '') and 1 or 0)
end
return { jobs(KEYS[1]) + jobs(KEYS[2]), jobs(KEYS[3]), jobs(KEYS[4]), redis.call('HEXISTS', KEYS[5], 'paused') }
