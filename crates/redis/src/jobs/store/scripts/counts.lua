#!lua flags=no-writes
-- Returns how many jobs of a partition wait, run and are dead, and 1 where it is paused.
local due, claimed, running, dead, settings = unpack(KEYS)
local function jobs(set)
  -- In a cluster one entry is nobody's.
  return redis.call('ZCARD', set) - (redis.call('ZSCORE', set, '') and 1 or 0)
end
return { jobs(due) + jobs(claimed), jobs(running), jobs(dead), redis.call('HEXISTS', settings, 'paused') }
