#!lua flags=allow-oom
-- Stores the number of partitions with a new queue.
-- `key` is one of a partition.
-- Returns the number stored, 1 where the user may publish to that channel, and a command of our scripts that
-- the user may not run, or nothing. A script that fails halfway for want of a right would leave a job in two
-- places, or in none.
local partitions = unpack(KEYS)
local given, channel, key = unpack(ARGV)
local commands = {
  { 'TIME' }, { 'TYPE', key },
  { 'GET', key }, { 'SET', key, '' }, { 'EXISTS', key },
  { 'HGET', key, '' }, { 'HMGET', key, '' }, { 'HEXISTS', key, '' }, { 'HSTRLEN', key, '' },
  { 'HSET', key, '', '' }, { 'HSETNX', key, '', '' }, { 'HDEL', key, '' },
  { 'ZRANGE', key, 0, 0 }, { 'ZSCORE', key, '' }, { 'ZMSCORE', key, '' }, { 'ZCARD', key },
  { 'ZADD', key, 0, '' }, { 'ZREM', key, '' }, { 'ZCOUNT', key, 0, 0 }, { 'HRANDFIELD', key, 1 },
}
for _, command in ipairs(commands) do
  if not redis.acl_check_cmd(unpack(command)) then return { 0, 0, command[1] } end
end
local stored = redis.call('GET', partitions)
if not stored then
  redis.call('SET', partitions, given)
  stored = given
end
return { tonumber(stored), redis.acl_check_cmd('PUBLISH', channel .. ':worker', '') and 1 or 0, '' }
