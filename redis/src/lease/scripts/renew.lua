#!lua flags=allow-oom
-- Moves the end of a lease that is still held by the same holder.
-- KEYS: holder, fence. ARGV: nonce, token, ttl in ms, how long the fence outlives the lease in ms.
-- Answers 1, or 0: it is not held by that holder.
if redis.call('GET', KEYS[1]) ~= ARGV[1] .. ' ' .. ARGV[2] then
    return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
if redis.call('PEXPIRE', KEYS[2], ARGV[3] + ARGV[4]) == 0 then
    redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[3] + ARGV[4])
end
return 1
