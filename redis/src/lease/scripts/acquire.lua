#!lua
-- Takes a lease that nobody holds.
-- KEYS: holder, fence, ended. ARGV: nonce, ttl in ms, how long the fence is kept in ms, the waiting process or nothing, how long it has
-- waited in ms if that is long.
-- Answers {1, token}, or {0, what is left of the holder's ttl in ms}.
--
-- The holder's key has its nonce and token, and after them the process that has waited longest: its name, since when, and when it asked
-- last, in ms. A lease that was released may be kept for that process: the key then has "kept" and its name.
local held = redis.call('GET', KEYS[1])
local nonce, token, line = string.match(held or '', '^(%S+) (%d+)(.*)$')
if nonce == ARGV[1] then
    return {1, token}
end
local kept_for = string.match(held or '', '^kept (%S+)$')
if held and not (kept_for and (ARGV[4] == '' or ARGV[4] == kept_for)) then
    if nonce and ARGV[5] ~= '0' then
        local time = redis.call('TIME')
        local now = time[1] * 1000 + math.floor(time[2] / 1000)
        local first, since, asked = string.match(line, '^ (%S+) (%d+) (%d+)$')
        local waits_since = now - ARGV[5]
        -- One that has not asked for a while does not wait any more.
        if not first or first == ARGV[4] or asked + 1500 < now or waits_since < tonumber(since) then
            line = string.format(' %s %.0f %.0f', ARGV[4], math.max(0, waits_since), now)
            redis.call('SET', KEYS[1], nonce .. ' ' .. token .. line, 'KEEPTTL')
        end
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
