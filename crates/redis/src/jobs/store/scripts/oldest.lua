#!lua flags=no-writes
-- KEYS: due. Returns for how many microseconds the first job of a partition has been due that no worker has claimed; -1 if none is due.
local first = tonumber(redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')[2])
if not first then return -1 end
local time = redis.call('TIME')
-- A score that is none of ours may be anything.
return math.max(-1, math.min(time[1] * 1000000 + time[2] - first, 9e15))
