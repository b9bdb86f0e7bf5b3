#!lua
-- Takes a lease that nobody holds.
-- KEYS: holder, fence, ended. ARGV: nonce, ttl in ms, how long the fence is kept in ms.
-- Answers {1, token}, or {0, what is left of the holder's ttl in ms}.
local held = redis.call('GET', KEYS[1])
if held then
    local nonce, token = string.match(held, '^(%S+) (%d+)$')
    if nonce == ARGV[1] then
        return {1, token}
    end
    return {0, redis.call('PTTL', KEYS[1])}
end
-- Given back before it arrived.
if redis.call('EXISTS', KEYS[3]) == 1 then
    return {0, 0}
end
local time = redis.call('TIME')
local token = tonumber(time[1]) * 1000000 + tonumber(time[2])
local last = tonumber(redis.call('GET', KEYS[2]) or 0) or 0
-- A number that Lua does not represent exactly is none of ours.
if last >= token and last < 9e15 then
    token = last + 1
end
token = string.format('%.0f', token)
redis.call('SET', KEYS[1], ARGV[1] .. ' ' .. token, 'PX', ARGV[2])
redis.call('SET', KEYS[2], token, 'PX', ARGV[3])
return {1, token}
