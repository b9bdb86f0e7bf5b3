#!lua flags=allow-oom
-- Moves the end of a lease that is still held by the same holder.
-- KEYS: holder, and fence unless it may be on another node. ARGV: nonce, token, ttl in ms, how long the fence is kept in ms.
-- Answers 1, or 0: it is not held by that holder.
local nonce, token = string.match(redis.call('GET', KEYS[1]) or '', '^([^ ;]+)[^ ]* (%d+)$')
if nonce ~= ARGV[1] or token ~= ARGV[2] then
    return 0
end
redis.call('PEXPIRE', KEYS[1], ARGV[3])
if not KEYS[2] then
    return 1
end
-- A fence that something else has written to ends no lease.
local last = redis.pcall('GET', KEYS[2])
if type(last) == 'table' then
    return 1
end
if (tonumber(last or 0) or 0) < tonumber(ARGV[2]) then
    redis.call('SET', KEYS[2], ARGV[2], 'PX', ARGV[4])
else
    redis.call('PEXPIRE', KEYS[2], ARGV[4])
end
return 1
