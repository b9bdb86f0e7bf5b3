#!lua flags=no-writes
-- Returns for how many microseconds the first job of a partition has been due that no worker has claimed; -1
-- if none is due.
local due = unpack(KEYS)
local first = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
if not first then return -1 end
local time = redis.call('TIME')
-- A score that is none of ours may be anything.
return math.max(-1, math.min(time[1] * 1000000 + time[2] - first, 9e15))
