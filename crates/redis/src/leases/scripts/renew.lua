#!lua flags=allow-oom
-- Moves the end of a lease that is still held by the same holder.
-- Without the fence, it may be on another node.
local holder, fence = unpack(KEYS)
-- In ms the ttl, and how long the fence is kept.
local nonce, token, ttl, fence_kept = unpack(ARGV)
-- Answers 1, or 0: it is not held by that holder.
local held_by, held_token = string.match(redis.call('GET', holder) or '', '^([^ ;]+)[^ ]* (%d+)$')
if held_by ~= nonce or held_token ~= token then
    return 0
end
redis.call('PEXPIRE', holder, ttl)
if not fence then
    return 1
end
-- A fence that something else has written to ends no lease.
local last = redis.pcall('GET', fence)
if type(last) == 'table' then
    return 1
end
if (tonumber(last or 0) or 0) < tonumber(token) then
    redis.call('SET', fence, token, 'PX', fence_kept)
else
    redis.call('PEXPIRE', fence, fence_kept)
end
return 1
