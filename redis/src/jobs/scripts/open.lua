#!lua
-- Stores the number of partitions with a new queue.
-- KEYS: partitions. ARGV: the number given, a channel. Returns the number stored, and 1 where the user may publish to that channel.
local stored = redis.call('GET', KEYS[1])
if not stored then
  redis.call('SET', KEYS[1], ARGV[1])
  stored = ARGV[1]
end
return { tonumber(stored), redis.acl_check_cmd('PUBLISH', ARGV[2], '') and 1 or 0 }
