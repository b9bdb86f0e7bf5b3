#!lua flags=no-writes
-- Returns for how many microseconds the first job of a partition has been due that no worker has claimed;
-- nothing if none is due.
local due = unpack(KEYS)
local first = tonumber(redis.call('ZRANGE', due, 0, 0, 'WITHSCORES')[2])
if not first then return false end
local time = redis.call('TIME')
local passed = time[1] * 1000000 + time[2] - first
-- A score that is none of ours may be anything.
return passed >= 0 and math.min(passed, 9e15)
