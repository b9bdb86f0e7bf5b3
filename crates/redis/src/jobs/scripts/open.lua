#!lua
-- Stores the number of partitions with a new queue.
-- KEYS: partitions. ARGV: the number given. Returns the number stored.
local stored = redis.call('GET', KEYS[1])
if stored then return tonumber(stored) end
redis.call('SET', KEYS[1], ARGV[1])
return tonumber(ARGV[1])
